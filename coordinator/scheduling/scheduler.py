"""Choose the rows of the next step: a pure function of what each running sequence has left to compute.

Every decode is in every step, so no prompt, however long, holds back a running answer. Prefill takes a bounded
share of the rows, oldest sequence first. The split changes time, never tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colibri.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Bounds of one step, in rows. max_rows: of all kinds; prefill_rows: of prefill over all sequences."""

    max_rows: int
    prefill_rows: int

    def __post_init__(self) -> None:
        if self.max_rows < 1:
            raise ConfigError("max_batch_rows", "at least 1", self.max_rows)
        if self.prefill_rows < 1:
            raise ConfigError("prefill_chunk", "at least 1", self.prefill_rows)


def share_rows(pending: Sequence[int], decoding: Sequence[bool], budget: StepBudget) -> list[int]:
    """Returns the rows of each sequence in the next step.

    pending: rows that each sequence could compute now, oldest sequence first (0: none).
    decoding: whether that is the one row of its last sampled token; such a sequence always gets it.

    The others share what `budget` leaves, oldest first. With fewer sequences than `max_rows` every step advances a
    prefill. Raises ValueError if decodes alone exceed the budget, which admission prevents.
    """
    rows = [count if decodes else 0 for count, decodes in zip(pending, decoding, strict=True)]
    left = budget.max_rows - sum(rows)
    if left < 0:
        raise ValueError(f"decoding: expected at most {budget.max_rows} rows, got {sum(rows)}")
    left = min(left, budget.prefill_rows)
    for at, (count, decodes) in enumerate(zip(pending, decoding, strict=True)):
        if not decodes and left > 0:
            rows[at] = min(count, left)
            left -= rows[at]
    return rows
