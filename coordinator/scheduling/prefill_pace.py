"""Decide how much prefill a step may take while answers run, so that their next tokens come only a little later.

A step takes the time of its decodes plus a time per row of prefill; both are measured. The split changes time,
never tokens.
"""

from __future__ import annotations

#: Weight of the last step in the running means.
_NEWEST = 0.25
#: Fewer rows share the reading of weights with nobody, and hardly shorten a step.
LEAST_ROWS = 16


class PrefillPace:
    """limit_s: about how long prefill may prolong a step with decodes, seconds; 0: no limit."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._decode_s: float | None = None
        self._row_s: float | None = None

    def rows(self, most: int) -> int:
        """Returns how many rows of prefill the next step with decodes takes: at most `most`, and all of them before
        anything was measured.
        """
        if not self._limit_s or not self._row_s:
            return most
        return min(most, max(LEAST_ROWS, int(self._limit_s / self._row_s)))

    def measured(self, decode_rows: int, prefill_rows: int, seconds: float) -> None:
        """Notes how long a step took."""
        if not prefill_rows:
            self._decode_s = _mean(self._decode_s, seconds)
            return
        decode_s = (self._decode_s or 0.0) if decode_rows else 0.0
        self._row_s = _mean(self._row_s, max(0.0, seconds - decode_s) / prefill_rows)


def _mean(before: float | None, newest: float) -> float:
    return newest if before is None else before + _NEWEST * (newest - before)
