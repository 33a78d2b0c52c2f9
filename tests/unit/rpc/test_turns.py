"""Large calls one at a time: callers in turn, a bounded number waits, each wait ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from colibri.deadline import Deadline
from colibri.errors import Busy, Cancelled, DeadlineExpired
from colibri.rpc.turns import Turns, Waiter
from tests.support.tiny_engine import WAIT_S, wait_for


class Crowd:
    """Callers that wait for their turn, one thread each; `order`: as they got their turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._threads: list[threading.Thread] = []
        self.order: list[str] = []
        self.most = 0
        self._inside = 0

    def join(self, caller: str) -> None:
        before = self._turns.waiting
        thread = threading.Thread(target=self._take, args=(caller,))
        self._threads.append(thread)
        thread.start()
        wait_for("the next to wait", lambda: self._turns.waiting == before + 1)

    def _take(self, caller: str) -> None:
        with self._turns.turn(Waiter(caller)):
            self._inside += 1
            self.most = max(self.most, self._inside)
            self.order.append(caller)
            time.sleep(0.01)
            self._inside -= 1

    def end(self) -> None:
        for thread in self._threads:
            thread.join(WAIT_S)
        assert not any(thread.is_alive() for thread in self._threads)


def test_callers_take_turns() -> None:
    turns = Turns("work")
    crowd = Crowd(turns)
    with turns.turn(Waiter("a")):
        for caller in ("a", "a", "a", "b", "c", "b"):
            crowd.join(caller)
    crowd.end()
    assert crowd.order == ["a", "b", "c", "a", "b", "a"]
    assert crowd.most == 1


def test_a_bounded_number_waits() -> None:
    turns = Turns("work", most_waiting=3, most_of_one=2)
    crowd = Crowd(turns)
    with turns.turn(Waiter("a")):
        crowd.join("a")
        crowd.join("a")
        with (
            pytest.raises(Busy, match="work: 2 of this caller wait already") as caught,
            turns.turn(Waiter("a")),
        ):
            pass
        assert caught.value.retryable
        crowd.join("b")
        with pytest.raises(Busy, match="work: 3 wait already"), turns.turn(Waiter("c")):
            pass
    crowd.end()
    with turns.turn(Waiter("c")):
        pass


def test_every_wait_ends() -> None:
    turns = Turns("work", wait_s=0.05)
    with turns.turn(Waiter("a")):
        with pytest.raises(Busy, match="others took more than"), turns.turn(Waiter("b")):
            pass
        soon = Deadline.after(0.01)
        with (
            pytest.raises(DeadlineExpired, match="while others were computed"),
            turns.turn(Waiter("b", soon)),
        ):
            pass
    assert turns.waiting == 0
    with turns.turn(Waiter("b")):
        pass


def test_a_call_that_fails_gives_its_turn_back() -> None:
    turns = Turns("work")
    with pytest.raises(ValueError), turns.turn(Waiter("a")):
        raise ValueError
    with turns.turn(Waiter("a")):
        pass


class Client:
    """One that may leave: what grpc calls then."""

    def __init__(self) -> None:
        self._wakes: list[Callable[[], None]] = []
        self._gone = False

    def on_leaving(self, wake: Callable[[], None]) -> bool:
        if not self._gone:
            self._wakes.append(wake)
        return not self._gone

    def leave(self) -> None:
        self._gone = True
        for wake in self._wakes:
            wake()


def test_who_leaves_waits_no_longer() -> None:
    turns, client = Turns("work"), Client()
    found: list[Exception] = []

    def wait() -> None:
        try:
            with turns.turn(Waiter("b", on_leaving=client.on_leaving)):
                pass
        except Exception as error:
            found.append(error)

    with turns.turn(Waiter("a")):
        thread = threading.Thread(target=wait)
        thread.start()
        wait_for("the second to wait", lambda: turns.waiting == 1)
        client.leave()
        thread.join(WAIT_S)
        assert turns.waiting == 0
        with pytest.raises(Cancelled), turns.turn(Waiter("b", on_leaving=client.on_leaving)):
            pass
    assert isinstance(found[0], Cancelled)
    assert found[0].message == "work: the client left while others were computed"
    with turns.turn(Waiter("c")):
        pass
