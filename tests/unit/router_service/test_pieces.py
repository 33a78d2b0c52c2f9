"""Large calls in pieces: which rows a piece has, and that one is computed at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from colibri.deadline import Deadline
from colibri.errors import Cancelled
from colibri.router_service.pieces import SMALL_ROWS, Pieces
from colibri.rpc.turns import Waiter
from tests.support.tiny_engine import WAIT_S


class Pauses:
    """An engine's, that is or is not busy. `inside`: pieces that hold the processors now."""

    def __init__(self, *, busy: bool) -> None:
        self.busy = busy
        self.inside = 0
        self.most = 0

    @contextmanager
    def piece(self, deadline: Deadline) -> Iterator[None]:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            yield
        finally:
            self.inside -= 1


class Clock:
    """Each row takes `row_s` seconds."""

    def __init__(self, row_s: float) -> None:
        self.now = 0.0
        self.row_s = row_s
        self.pieces: list[tuple[int, int]] = []

    def __call__(self) -> float:
        return self.now

    def compute(self, first: int, end: int) -> range:
        self.now += self.row_s * (end - first)
        self.pieces.append((first, end))
        return range(first, end)


@pytest.mark.parametrize("rows", [1, 64, 65, 1000, 4096])
@pytest.mark.parametrize("busy", [False, True])
def test_pieces_are_all_rows_in_order(rows: int, busy: bool) -> None:
    clock = Clock(1e-4)
    results = Pieces(Pauses(busy=busy), 1024, clock).run(rows, Waiter("a"), clock.compute)
    assert [row for piece in results for row in piece] == list(range(rows))
    assert max(map(len, results)) <= 1024


def test_without_running_answers_pieces_are_as_large_as_they_may_be() -> None:
    clock = Clock(1.0)
    Pieces(Pauses(busy=False), 1024, clock).run(2500, Waiter("a"), clock.compute)
    assert clock.pieces == [(0, 1024), (1024, 2048), (2048, 2500)]


@pytest.mark.parametrize(("row_s", "rows"), [(1e-6, 1024), (2e-4, 200), (1.0, SMALL_ROWS)])
def test_beside_answers_a_piece_takes_about_40_ms(row_s: float, rows: int) -> None:
    clock = Clock(row_s)
    Pieces(Pauses(busy=True), 1024, clock).run(5000, Waiter("a"), clock.compute)
    first, *rest, _ = (end - first for first, end in clock.pieces)
    assert first == SMALL_ROWS
    assert rest == pytest.approx([rows] * len(rest), abs=1)


def test_one_piece_is_computed_at_a_time() -> None:
    pauses = Pauses(busy=True)
    clock = Clock(1e-3)
    pieces = Pieces(pauses, 1024, clock)
    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(pieces.run, 500, Waiter(str(i)), clock.compute) for i in range(8)]
        for call in calls:
            assert [row for piece in call.result(WAIT_S) for row in piece] == list(range(500))
    assert pauses.most == 1


def test_a_call_ends_between_two_pieces_when_its_client_leaves() -> None:
    clock = Clock(1e-3)
    gone = threading.Event()

    def compute(first: int, end: int) -> range:
        gone.set()
        return clock.compute(first, end)

    waiter = Waiter("a", on_leaving=lambda wake: not gone.is_set())
    pieces = Pieces(Pauses(busy=True), 1024, clock)
    with pytest.raises(Cancelled):
        pieces.run(500, waiter, compute)
    assert clock.pieces == [(0, SMALL_ROWS)]
    gone.clear()
    pieces.run(64, Waiter("b"), clock.compute)


def test_what_fails_gives_the_processors_back() -> None:
    pauses = Pauses(busy=True)
    pieces = Pieces(pauses, 1024, Clock(1e-3))

    def fails(first: int, end: int) -> None:
        raise ValueError

    with pytest.raises(ValueError):
        pieces.run(500, Waiter("a"), fails)
    assert pieces.run(5, Waiter("a"), lambda first, end: end) == [5]
