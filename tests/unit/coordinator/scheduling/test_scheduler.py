"""The step scheduler: budgets hold, decodes never wait, every prefill ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.coordinator.scheduling.scheduler import StepBudget, share_rows
from colibri.errors import ConfigError

budgets = st.builds(StepBudget, max_rows=st.integers(1, 300), prefill_rows=st.integers(1, 300))


@st.composite
def running(draw: st.DrawFn) -> tuple[StepBudget, list[int], list[bool]]:
    """A budget and as many sequences as admission lets in."""
    budget = draw(budgets)
    decoding = draw(st.lists(st.booleans(), min_size=1, max_size=min(budget.max_rows, 40)))
    pending = [1 if decodes else draw(st.integers(0, 5000)) for decodes in decoding]
    return budget, pending, decoding


@given(running())
def test_budgets_and_decodes(case: tuple[StepBudget, list[int], list[bool]]) -> None:
    budget, pending, decoding = case
    rows = share_rows(pending, decoding, budget)
    assert sum(rows) <= budget.max_rows
    assert sum(r for r, decodes in zip(rows, decoding, strict=True) if not decodes) <= budget.prefill_rows
    assert all(r == 1 for r, decodes in zip(rows, decoding, strict=True) if decodes)
    assert all(0 <= r <= p for r, p in zip(rows, pending, strict=True))


@given(running())
def test_older_prefill_first(case: tuple[StepBudget, list[int], list[bool]]) -> None:
    budget, pending, decoding = case
    rows = share_rows(pending, decoding, budget)
    prefill = [(r, p) for r, p, decodes in zip(rows, pending, decoding, strict=True) if not decodes]
    unfinished = [r < p for r, p in prefill]
    if True in unfinished:
        later = prefill[unfinished.index(True) + 1 :]
        assert all(r == 0 for r, _ in later)


@given(running())
def test_every_prefill_ends(case: tuple[StepBudget, list[int], list[bool]]) -> None:
    budget, pending, decoding = case
    total = sum(p for p, decodes in zip(pending, decoding, strict=True) if not decodes)
    for _ in range(total):  # one row a step is the least that any step moves
        if not any(p for p, decodes in zip(pending, decoding, strict=True) if not decodes):
            break
        for at, rows in enumerate(share_rows(pending, decoding, budget)):
            if not decoding[at]:
                pending[at] -= rows
                decoding[at] = rows > 0 and pending[at] == 0  # from its next step on it decodes
                pending[at] = 1 if decoding[at] else pending[at]
    assert all(decodes or not p for p, decodes in zip(pending, decoding, strict=True))


def test_decodes_beyond_the_budget_are_an_error() -> None:
    with pytest.raises(ValueError, match="decoding: expected at most 2 rows, got 3"):
        share_rows([1, 1, 1], [True] * 3, StepBudget(2, 1))


@pytest.mark.parametrize(("rows", "prefill", "field"), [(0, 1, "max_batch_rows"), (1, 0, "prefill_chunk")])
def test_budget_bounds(rows: int, prefill: int, field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field}: expected at least 1, got 0"):
        StepBudget(rows, prefill)
