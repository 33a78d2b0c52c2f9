"""Who gets a place, who loses one, and how long a peer may keep a call waiting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from colibri.errors import Busy
from colibri.rpc.places import Bounds, Place, Places, Wait


class Call:
    """A call's context: whose connection it is, whether it was cut, and what it runs when it is over."""

    def __init__(self, peer: str = "ipv4:127.0.0.1:1") -> None:
        self._peer = peer
        self.cuts = 0
        self.callbacks: list[Callable[[], None]] = []

    def peer(self) -> str:
        return self._peer

    def cancel(self) -> None:
        self.cuts += 1

    def add_callback(self, callback: Callable[[], None]) -> bool:
        self.callbacks.append(callback)
        return True

    def over(self) -> None:
        for callback in self.callbacks:
            callback()


class Bench:
    def __init__(self, limit: int) -> None:
        self.now = 100.0
        self.places = Places("bench", limit, Bounds(message_s=10.0, reader_s=60.0), lambda: self.now)

    def enter(self, peer: str = "a", caller: str = "") -> tuple[Call, Place]:
        call = Call(peer)
        context: Any = call
        return call, self.places.enter(context, caller)


def test_calls_that_run_keep_their_places() -> None:
    bench = Bench(2)
    for peer in ("a", "b"):
        bench.enter(peer)[1].waits(Wait.NOTHING)
    bench.now += 1000
    with pytest.raises(Busy) as caught:
        bench.enter("c")
    assert caught.value.message == "bench: 2 calls run already, the limit of this server"
    assert bench.places.sweep() == 0


def test_who_owes_its_message_makes_room_for_another_connection() -> None:
    """The longest wait on the connection with most of them."""
    bench = Bench(3)
    b, _ = bench.enter("b")
    bench.now += 0.001
    first, _ = bench.enter("a")
    second, _ = bench.enter("a")
    newcomer, _ = bench.enter("c")
    assert (b.cuts, first.cuts, second.cuts, newcomer.cuts) == (0, 1, 0, 0)
    assert bench.places.taken == 3


def test_the_same_connection_gets_room_from_who_waited_for_a_while_only() -> None:
    bench = Bench(1)
    first, _ = bench.enter("a")
    with pytest.raises(Busy):
        bench.enter("a")
    bench.now += 1.0
    bench.enter("a")
    assert first.cuts == 1


def test_a_message_that_comes_after_the_place_was_given_away() -> None:
    bench = Bench(1)
    _, late = bench.enter("a")
    bench.enter("b")
    with pytest.raises(Busy) as caught:
        late.waits(Wait.NOTHING)
    assert "its place went to another call" in caught.value.message
    late.leave()
    assert bench.places.taken == 1


def test_an_owed_message_has_a_bound() -> None:
    bench = Bench(4)
    owing, place = bench.enter()
    _, running = bench.enter()
    running.waits(Wait.NOTHING)
    bench.now += 9
    assert bench.places.sweep() == 0
    bench.now += 2
    assert bench.places.sweep() == 1
    assert owing.cuts == 1
    place.leave()
    assert bench.places.sweep() == 0
    assert bench.places.taken == 1


def test_a_reader_has_a_bound_too() -> None:
    bench = Bench(4)
    reader, place = bench.enter()
    place.waits(Wait.NOTHING)
    place.waits(Wait.READER)
    bench.now += 61
    assert bench.places.sweep() == 1
    assert reader.cuts == 1


def test_what_idles_is_never_late_and_makes_room() -> None:
    bench = Bench(1)
    idle, place = bench.enter()
    place.waits(Wait.NOTHING)
    place.waits(Wait.IDLE)
    bench.now += 1e6
    assert bench.places.sweep() == 0
    bench.enter()
    assert idle.cuts == 1


def test_one_caller_leaves_places_to_others() -> None:
    bench = Bench(16)
    mine = [bench.enter(f"{number}", "alice") for number in range(14)]
    with pytest.raises(Busy) as caught:
        bench.enter("x", "alice")
    assert caught.value.message == (
        "bench: this caller has 14 calls open, the most that one caller may have of 16"
    )
    bench.enter("x", "bob")
    mine[0][1].leave()
    bench.enter("x", "alice")


def test_the_last_reply_is_waited_for_within_bounds() -> None:
    bench = Bench(1)
    calls = []
    for _ in range(2):
        call, place = bench.enter()
        place.waits(Wait.NOTHING)
        place.leave()
        calls.append(call)
        bench.now += 2
    assert (bench.places.taken, bench.places.unread) == (0, 2)
    calls[1].over()
    assert bench.places.unread == 1
    bench.now += 61
    assert bench.places.sweep() == 1
    assert (calls[0].cuts, calls[1].cuts) == (1, 0)
    assert bench.places.unread == 0


def test_unread_replies_are_bounded_in_number() -> None:
    bench = Bench(1)
    calls = []
    for _ in range(5):
        call, place = bench.enter()
        place.waits(Wait.NOTHING)
        place.leave()
        calls.append(call)
        bench.now += 2
    assert [call.cuts for call in calls] == [1, 1, 1, 0, 0]
    assert bench.places.unread == 2


def test_a_call_that_was_over_already_is_not_waited_for() -> None:
    bench = Bench(1)
    call, place = bench.enter()
    place.waits(Wait.NOTHING)
    call.over()
    place.leave()
    assert bench.places.unread == 0
