"""Find stop strings in a growing text, however tokens divide them: one Knuth-Morris-Pratt automaton each."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Reads a text piece by piece. The result does not depend on how the text is divided.

    Of several completed stop strings, the one that ends first counts; of those that end together, the longest.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._failures = [_failures(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)

    @property
    def held(self) -> int:
        """Characters at the end of the text that may begin a stop string."""
        return max(self._matched, default=0)

    def read(self, piece: str, *, counts: bool) -> tuple[int, str] | None:
        """Reads a piece. Returns where the first stop string that it completes ends, and that string; the text is over
        then. Or None.

        counts: False: ignore stop strings that this piece completes.
        """
        for at, character in enumerate(piece):
            found = None
            for which, stop in enumerate(self._stops):
                failures, matched = self._failures[which], self._matched[which]
                while matched and stop[matched] != character:
                    matched = failures[matched - 1]
                if stop[matched] == character:
                    matched += 1
                if matched == len(stop):
                    found = found or stop
                    matched = failures[matched - 1]
                self._matched[which] = matched
            if found is not None and counts:
                return at + 1, found
        return None


def _failures(pattern: str) -> list[int]:
    """Returns, for each prefix, the length of its longest proper suffix that is also a prefix."""
    failures = [0] * len(pattern)
    matched = 0
    for at in range(1, len(pattern)):
        while matched and pattern[at] != pattern[matched]:
            matched = failures[matched - 1]
        if pattern[at] == pattern[matched]:
            matched += 1
        failures[at] = matched
    return failures
