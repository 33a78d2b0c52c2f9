"""Admission, order and the compute turn."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from queue import SimpleQueue

import pytest

from colibri.deadline import Deadline
from colibri.errors import Busy
from colibri.expert_service.queue import ExecutionQueue, Lane, Work
from colibri.wire.frame import Frame
from colibri.wire.header import Header


def work(number: int, priority: int = 0, size: int = 10, reply: int = 10, arrived: float = 0.0) -> Work:
    frame = Frame(Header(correlation_id=number), memoryview(b""))
    return Work((number, 0), frame, priority, arrived, Deadline(), size, reply)


def put(queue: ExecutionQueue, lane: Lane, *items: Work) -> None:
    for item in items:
        queue.reserve(item.request_bytes)
        queue.push(lane, item)


def opened(queue: ExecutionQueue, wake: Callable[[], None] = lambda: None) -> Lane:
    lane = Lane(wake)
    queue.open_lane(lane)
    return lane


def take(queue: ExecutionQueue, lane: Lane) -> int | None:
    found = queue.take(lane, will_wait=True)
    if found is None:
        return None
    queue.pass_turn()
    return found.key[0]


def test_priority_first_then_age() -> None:
    queue = ExecutionQueue(10, 1000)
    lane = opened(queue)
    put(queue, lane, work(1), work(2, priority=5), work(3), work(4, priority=5), work(5, priority=9))
    assert [take(queue, lane) for _ in range(6)] == [5, 2, 4, 1, 3, None]
    assert queue.waiting == 0


def test_age_is_the_time_of_arrival() -> None:
    queue = ExecutionQueue(10, 1000)
    lane = opened(queue)
    put(queue, lane, work(1, arrived=3.0), work(2, arrived=1.0), work(3, arrived=2.0), work(4, arrived=1.0))
    assert [take(queue, lane) for _ in range(4)] == [2, 4, 3, 1]


def test_bounds_in_number_and_bytes() -> None:
    queue = ExecutionQueue(3, 100)
    lane = opened(queue)
    put(queue, lane, work(1, size=60))
    with pytest.raises(Busy, match="the queue is full: requests hold 60 of 100 bytes"):
        queue.reserve(41)
    put(queue, lane, work(2, size=20), work(3, size=20))
    with pytest.raises(Busy, match="the queue is full: 3 requests wait"):
        queue.reserve(0)
    assert take(queue, lane) == 1
    queue.reserve(50)
    queue.release(50)
    assert queue.waiting == 2


def test_one_request_of_any_size_fits_an_empty_queue() -> None:
    ExecutionQueue(1, 100).reserve(1000)


def test_cancel() -> None:
    queue = ExecutionQueue(9, 1000)
    lane, other = opened(queue), opened(queue)
    put(queue, lane, *(work(number, priority=number % 3) for number in range(1, 8)))
    put(queue, other, work(3))
    assert queue.cancel(lane, (4, 0))
    assert not queue.cancel(lane, (4, 0))
    assert not queue.cancel(lane, (5, 1))
    assert queue.cancel(other, (3, 0))
    assert queue.waiting == 6
    assert [take(queue, lane) for _ in range(7)] == [2, 5, 1, 7, 3, 6, None]


def test_the_turn_is_one() -> None:
    queue = ExecutionQueue(9, 1000)
    woken: list[str] = []
    one, two = opened(queue, lambda: woken.append("one")), opened(queue, lambda: woken.append("two"))
    put(queue, one, work(1), work(2))
    put(queue, two, work(3))
    assert queue.take(one, will_wait=True)
    assert queue.take(two, will_wait=True) is None
    assert woken == []
    queue.pass_turn()
    assert woken == ["two"]
    assert take(queue, two) == 3


def test_the_turn_goes_to_the_most_urgent_waiting_lane() -> None:
    queue = ExecutionQueue(9, 1000)
    woken: list[str] = []
    lanes = {name: opened(queue, lambda name=name: woken.append(name)) for name in "abc"}  # type: ignore[misc]
    put(queue, lanes["a"], work(1), work(2))
    put(queue, lanes["b"], work(3, priority=1))
    put(queue, lanes["c"], work(4, priority=7))
    assert queue.take(lanes["b"], will_wait=True)
    assert queue.take(lanes["a"], will_wait=True) is None
    assert queue.take(lanes["c"], will_wait=True) is None
    queue.pass_turn()
    assert woken == ["c"]
    # Whoever comes in between steps back behind the one that was woken.
    assert queue.take(lanes["a"], will_wait=True) is None
    assert woken == ["c", "c"]
    assert take(queue, lanes["c"]) == 4
    assert woken == ["c", "c", "a"]
    assert take(queue, lanes["a"]) == 1


def test_a_lane_that_does_not_wait_holds_up_nobody() -> None:
    queue = ExecutionQueue(9, 1000)
    stuck, free = opened(queue), opened(queue)
    put(queue, stuck, work(1, priority=9))
    put(queue, free, work(2))
    assert queue.take(stuck, will_wait=False, max_reply_bytes=5) is None
    assert take(queue, free) == 2


def test_only_small_replies() -> None:
    queue = ExecutionQueue(9, 1000)
    lane = opened(queue)
    put(queue, lane, work(1, reply=100))
    assert queue.take(lane, will_wait=False, max_reply_bytes=99) is None
    assert queue.take(lane, will_wait=False, max_reply_bytes=100)


def test_closing_a_lane_drops_its_requests_and_lets_others_go_on() -> None:
    queue = ExecutionQueue(9, 1000)
    woken: list[int] = []
    lane, other = opened(queue), opened(queue, lambda: woken.append(1))
    put(queue, lane, work(1, priority=9), work(2))
    put(queue, other, work(3))
    assert queue.take(lane, will_wait=True)
    queue.pass_turn()
    lane.wanting = True
    assert queue.take(other, will_wait=True) == work(3) or woken == []
    assert queue.close_lane(lane) == 1
    assert queue.waiting <= 1


def test_wake_all() -> None:
    queue = ExecutionQueue(9, 1000)
    woken: list[str] = []
    for name in "ab":
        opened(queue, lambda name=name: woken.append(name))  # type: ignore[misc]
    queue.wake_all()
    assert sorted(woken) == ["a", "b"]


def test_threads_share_the_turn_without_loss_or_overlap() -> None:
    """Each lane has its own thread, as streams do; a lost wake-up would show as a thread that times out."""
    queue = ExecutionQueue(10_000, 1 << 30)
    computing: list[int] = []
    done: list[tuple[int, int]] = []
    late: list[int] = []

    def serve(name: int) -> None:
        wakes: SimpleQueue[None] = SimpleQueue()
        lane = opened(queue, lambda: wakes.put(None))
        draw = random.Random(name)
        for number in range(300):
            put(queue, lane, work(number, priority=draw.randrange(4)))
            while lane:
                found = queue.take(lane, will_wait=True)
                if found is None:
                    try:
                        wakes.get(timeout=10.0)
                    except Exception:
                        late.append(name)
                        return
                    continue
                computing.append(name)
                if len(computing) > 1:
                    late.append(-1)
                computing.pop()
                queue.pass_turn()
                done.append((name, found.key[0]))
        queue.close_lane(lane)

    threads = [threading.Thread(target=serve, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert late == []
    assert sorted(done) == [(name, number) for name in range(6) for number in range(300)]
    assert queue.waiting == 0
