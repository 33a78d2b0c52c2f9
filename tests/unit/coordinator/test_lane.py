"""Large calls one at a time: callers in turn, a bounded number waits, each wait ends."""

from __future__ import annotations

import threading
import time

import pytest

from colibri.coordinator.lane import Lane
from colibri.deadline import Deadline
from colibri.errors import Busy, DeadlineExpired
from tests.support.tiny_engine import WAIT_S, wait_for


class Crowd:
    """Callers that wait in a lane, one thread each; `order`: as they got their turn."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._threads: list[threading.Thread] = []
        self.order: list[str] = []
        self.most = 0
        self._inside = 0

    def join(self, caller: str) -> None:
        before = waiting(self._lane)
        thread = threading.Thread(target=self._take, args=(caller,))
        self._threads.append(thread)
        thread.start()
        wait_for("the next in the lane", lambda: waiting(self._lane) == before + 1)

    def _take(self, caller: str) -> None:
        with self._lane.turn(caller, Deadline()):
            self._inside += 1
            self.most = max(self.most, self._inside)
            self.order.append(caller)
            time.sleep(0.01)
            self._inside -= 1

    def end(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in self._threads)


def waiting(lane: Lane) -> int:
    return sum(map(len, lane._waiting.values()))


def test_callers_take_turns() -> None:
    lane = Lane("work")
    crowd = Crowd(lane)
    with lane.turn("a", Deadline()):
        for caller in ("a", "a", "a", "b", "c", "b"):
            crowd.join(caller)
    crowd.end()
    assert crowd.order == ["a", "b", "c", "a", "b", "a"]
    assert crowd.most == 1


def test_a_bounded_number_waits() -> None:
    lane = Lane("work", most_waiting=3, most_of_one=2)
    crowd = Crowd(lane)
    with lane.turn("a", Deadline()):
        crowd.join("a")
        crowd.join("a")
        with (
            pytest.raises(Busy, match="work: 2 of this caller wait already") as caught,
            lane.turn("a", Deadline()),
        ):
            pass
        assert caught.value.retryable
        crowd.join("b")
        with pytest.raises(Busy, match="work: 3 wait already"), lane.turn("c", Deadline()):
            pass
    crowd.end()
    with lane.turn("c", Deadline()):
        pass


def test_every_wait_ends() -> None:
    lane = Lane("work", wait_s=0.05)
    with lane.turn("a", Deadline()):
        with pytest.raises(Busy, match="others took more than"), lane.turn("b", Deadline()):
            pass
        soon = Deadline.after(0.01)
        with pytest.raises(DeadlineExpired, match="while others were computed"), lane.turn("b", soon):
            pass
    assert waiting(lane) == 0
    with lane.turn("b", Deadline()):
        pass


def test_a_call_that_fails_leaves_the_lane() -> None:
    lane = Lane("work")
    with pytest.raises(ValueError), lane.turn("a", Deadline()):
        raise ValueError
    with lane.turn("a", Deadline()):
        pass
