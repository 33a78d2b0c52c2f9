"""Arrange one step's rows as arrays: a pure function of the running sequences."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from colibri.coordinator.kv_cache import KvCache
from colibri.coordinator.scheduling.scheduler import StepBudget, share_rows
from colibri.coordinator.sequence import Sequence
from colibri.deadline import Deadline
from colibri.kernels.api import U32

I32 = NDArray[np.int32]
_NO_ROWS = np.zeros(0, dtype=np.intp)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """The rows of one step; those of a sequence are together and ascending.

    ids: u32 [rows].
    positions: i32 [rows].
    row_sequence: i32 [rows], the step's sequence of each row.
    page_table: i32 [sequences, pages].
    logit_rows: intp [n], rows whose logits are needed, at most one per sequence, ascending.
    scored_rows: intp [m], rows of prompts whose logits give log-probabilities only.
    deadline: after it nobody waits for the step.
    priority: the largest of its requests.
    """

    ids: U32
    positions: I32
    row_sequence: I32
    page_table: I32
    logit_rows: NDArray[np.intp]
    deadline: Deadline
    priority: int
    scored_rows: NDArray[np.intp] = field(default_factory=lambda: _NO_ROWS)


@dataclass(frozen=True, slots=True)
class Step:
    """A step. rows[i]: how many rows of `batch` belong to sequences[i]."""

    sequences: tuple[Sequence, ...]
    rows: tuple[int, ...]
    batch: StepBatch


def compose_step(running: SequenceOf[Sequence], budget: StepBudget) -> Step:
    """Returns the next step of the running sequences (at least one, oldest first, each with its pages)."""
    shares = share_rows([s.pending for s in running], [s.decoding for s in running], budget)
    chosen = [(s, rows) for s, rows in zip(running, shares, strict=True) if rows]
    sequences = tuple(s for s, _ in chosen)
    rows = tuple(count for _, count in chosen)
    ends = np.cumsum(rows)
    completes = [s.computed + count == s.known for s, count in chosen]
    limits = [s.request.deadline.at for s in sequences]
    last = max(math.inf if at is None else at for at in limits)
    return Step(
        sequences,
        rows,
        StepBatch(
            ids=np.concatenate([s.ids[s.computed : s.computed + count] for s, count in chosen]),
            positions=np.concatenate(
                [np.arange(s.computed, s.computed + count, dtype=np.int32) for s, count in chosen]
            ),
            row_sequence=np.repeat(np.arange(len(chosen), dtype=np.int32), rows),
            page_table=KvCache.page_table([s.pages for s in sequences if s.pages is not None]),
            logit_rows=(ends - 1)[completes],
            scored_rows=_scored_rows(chosen) if [s for s in sequences if s.scoring] else _NO_ROWS,
            deadline=Deadline(None if last == math.inf else last),
            priority=max(s.request.priority for s in sequences),
        ),
    )


def _scored_rows(chosen: SequenceOf[tuple[Sequence, int]]) -> NDArray[np.intp]:
    """Returns the rows of each scored prompt, without its last row, which the sampler has."""
    parts, begin = [], 0
    for sequence, count in chosen:
        if sequence.scoring:
            last = len(sequence.request.prompt_ids) - 1
            parts.append(
                np.arange(begin, begin + max(0, min(count, last - sequence.computed)), dtype=np.intp)
            )
        begin += count
    return np.concatenate(parts)
