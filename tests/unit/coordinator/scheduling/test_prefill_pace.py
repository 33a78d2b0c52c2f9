"""Prefill beside decodes: as many rows as their measured time allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from colibri.coordinator.scheduling.prefill_pace import LEAST_ROWS, PrefillPace


def paced(limit_s: float, decode_s: float, row_s: float, steps: int = 40) -> PrefillPace:
    pace = PrefillPace(limit_s)
    for step in range(steps):
        rows = step % 3 * 10
        pace.measured(4, rows, decode_s + rows * row_s)
    return pace


def test_all_rows_before_any_was_measured() -> None:
    assert PrefillPace(0.05).rows(128) == 128
    only_decodes = PrefillPace(0.05)
    only_decodes.measured(4, 0, 0.1)
    assert only_decodes.rows(128) == 128


@given(st.floats(1e-3, 1.0), st.floats(1e-3, 1.0), st.floats(1e-6, 1e-1), st.integers(1, 4096))
def test_the_rows_of_the_limit(limit_s: float, decode_s: float, row_s: float, most: int) -> None:
    rows = paced(limit_s, decode_s, row_s).rows(most)
    expected = min(most, max(LEAST_ROWS, limit_s / row_s))
    assert abs(rows - expected) <= 1 + 0.01 * expected


def test_no_limit() -> None:
    assert paced(0.0, 0.01, 1.0).rows(128) == 128


def test_a_step_without_decodes_tells_the_rows_whole_time() -> None:
    pace = PrefillPace(0.05)
    pace.measured(4, 0, 10.0)
    pace.measured(0, 100, 0.1)
    assert pace.rows(128) == 50


def test_one_stalled_step_is_made_up_for() -> None:
    pace = paced(0.05, 0.01, 0.001)
    pace.measured(4, 10, 20.0)
    assert pace.rows(128) == LEAST_ROWS
    for _ in range(40):
        pace.measured(4, LEAST_ROWS, 0.01 + LEAST_ROWS * 0.001)
    assert 45 <= pace.rows(128) <= 50
