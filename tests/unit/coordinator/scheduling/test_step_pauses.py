"""Steps and pieces take turns; neither waits for the other for long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from colibri.coordinator.scheduling.step_pauses import StepPauses
from colibri.deadline import Deadline
from tests.support.tiny_engine import WAIT_S, wait_for

#: Longer than any test: waits end because they may, not because time is up.
LONG_S = 600.0


class Order:
    """Threads that want a step or a piece; `names`: as they got it."""

    def __init__(self, pauses: StepPauses) -> None:
        self._pauses = pauses
        self._threads: list[threading.Thread] = []
        self.names: list[str] = []

    def piece(self, name: str) -> None:
        waiting = self._pauses._pieces_wait
        self._start(name, lambda: self._pauses.piece(Deadline()))
        wait_for("a piece that waits", lambda: self._pauses._pieces_wait == waiting + 1)

    def step(self, name: str) -> None:
        self._start(name, self._pauses.step)
        wait_for("a step that waits", lambda: self._pauses._step_waits)

    def _start(self, name: str, enter: Callable[[], AbstractContextManager[None]]) -> None:
        def run() -> None:
            with enter():
                self.names.append(name)

        thread = threading.Thread(target=run)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in self._threads)


def test_one_piece_runs_between_two_steps() -> None:
    pauses = StepPauses(LONG_S, LONG_S)
    order = Order(pauses)
    with pauses.piece(Deadline()):
        order.step("step")
        order.piece("second piece")
    order.end()
    assert order.names == ["step", "second piece"]


def test_a_piece_that_waits_goes_before_the_next_step() -> None:
    pauses = StepPauses(LONG_S, LONG_S)
    order = Order(pauses)
    with pauses.step():
        order.piece("piece")
    with pauses.step():
        order.names.append("step")
    order.end()
    assert order.names == ["piece", "step"]


def test_steps_follow_each_other_where_no_piece_waits() -> None:
    pauses = StepPauses(LONG_S, LONG_S)
    for _ in range(3):
        with pauses.step():
            assert pauses.busy
    with pauses.piece(Deadline()):
        pass


def test_a_step_leaves_a_long_piece_behind() -> None:
    pauses = StepPauses(step_wait_s=0.01, piece_wait_s=LONG_S)
    with pauses.piece(Deadline()):
        with pauses.step():
            pass
        # No step waits for it again.
        pauses._step_wait_s = LONG_S
        with pauses.step():
            pass
        with pauses.piece(Deadline()):
            pass
    with pauses.step():
        pass


def test_a_piece_begins_beside_a_long_step() -> None:
    pauses = StepPauses(LONG_S, piece_wait_s=0.01)
    with pauses.step(), pauses.piece(Deadline()):
        pass
    pauses = StepPauses(LONG_S, LONG_S)
    with pauses.step(), pauses.piece(Deadline.after(0.01)):
        pass
    with pauses.step():
        pass


def test_the_engine_is_busy_for_a_moment_after_a_step() -> None:
    now = 0.0
    pauses = StepPauses(clock=lambda: now)
    assert not pauses.busy
    with pauses.step():
        now = 5.0
        assert pauses.busy
    assert pauses.busy
    now = 6.0
    assert not pauses.busy
