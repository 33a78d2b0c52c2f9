"""How much prefill a step may take while answers run: so many rows that their next tokens come little later.

A step's time is the decodes' plus so much for each row of prefill; both are measured, none assumed. The split changes
time, never tokens.
"""

from __future__ import annotations

#: Weight of the last step in the running means.
_NEWEST = 0.25
#: Fewer rows share the reading of weights with nobody, and hardly shorten a step.
LEAST_ROWS = 16


class PrefillPace:
    """limit_s: seconds that prefill may add to a step beside decodes, about; 0: any."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._decode_s: float | None = None
        self._row_s: float | None = None

    def rows(self, most: int) -> int:
        """Rows of prefill in the next step beside decodes: at most `most`, and all of them before any was measured."""
        if not self._limit_s or not self._row_s:
            return most
        return min(most, max(LEAST_ROWS, int(self._limit_s / self._row_s)))

    def measured(self, decode_rows: int, prefill_rows: int, seconds: float) -> None:
        """What a step took."""
        if not prefill_rows:
            self._decode_s = _mean(self._decode_s, seconds)
            return
        decode_s = (self._decode_s or 0.0) if decode_rows else 0.0
        self._row_s = _mean(self._row_s, max(0.0, seconds - decode_s) / prefill_rows)


def _mean(before: float | None, newest: float) -> float:
    return newest if before is None else before + _NEWEST * (newest - before)
