"""Queue requests for the worker's compute: bounded in number and bytes, highest priority first, then oldest.

Each stream has a lane, which its own thread fills and empties. One turn, the right to compute, goes round among the
lanes that want it, always to the lane whose first request is the most urgent. docs/threads.md has the states.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from typing import NamedTuple

from colibri.deadline import Deadline
from colibri.errors import Busy
from colibri.wire.frame import Frame

#: (-priority, arrival in monotonic seconds, a number that tells equals apart): the smallest runs first.
_Rank = tuple[int, float, int]
#: (correlation_id, attempt), unique on its stream while in flight.
MessageId = tuple[int, int]


class Work(NamedTuple):
    """One complete, checked request.

    arrived: monotonic seconds.
    reply_bytes: size of its result.
    """

    key: MessageId
    frame: Frame
    priority: int
    arrived: float
    deadline: Deadline
    request_bytes: int
    reply_bytes: int


class Lane:
    """The waiting requests of one stream.

    wake: makes the stream's thread call `take` again; must not wait itself.
    wanting: a `take` returned None, and the thread waits or has been woken since: it owes the queue another `take`.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.wanting = False
        self.heap: list[tuple[_Rank, Work]] = []

    def __len__(self) -> int:
        return len(self.heap)


class ExecutionQueue:
    """All lanes of a worker. Thread-safe."""

    def __init__(self, max_requests: int, max_bytes: int) -> None:
        self._max_requests = max_requests
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._lanes: set[Lane] = set()
        self._turn: Lane | None = None
        self._pushed = 0
        self._requests = 0
        self._bytes = 0

    @property
    def waiting(self) -> int:
        """Requests that hold a place, including those still arriving in chunks."""
        return self._requests

    def oldest(self) -> float | None:
        """Returns when the longest waiting request arrived, in monotonic seconds; None if none waits."""
        with self._lock:
            return min((work.arrived for lane in self._lanes for _, work in lane.heap), default=None)

    def open_lane(self, lane: Lane) -> None:
        with self._lock:
            self._lanes.add(lane)

    def wake_all(self) -> None:
        """Makes every lane's thread look at its state again."""
        with self._lock:
            for lane in self._lanes:
                lane.wake()

    def close_lane(self, lane: Lane) -> int:
        """Drops a lane's waiting requests. Returns how many. Its thread must not hold the turn."""
        with self._lock:
            self._lanes.discard(lane)
            dropped = len(lane.heap)
            for _, work in lane.heap:
                self._leave(work.request_bytes)
            lane.heap.clear()
            self._wake_first()
        return dropped

    def reserve(self, request_bytes: int) -> None:
        """Takes a place for a request whose first chunk has arrived. Raises Busy if the queue is full."""
        with self._lock:
            if self._requests >= self._max_requests:
                raise Busy(f"the queue is full: {self._requests} requests wait")
            if self._requests and self._bytes + request_bytes > self._max_bytes:
                raise Busy(f"the queue is full: requests hold {self._bytes} of {self._max_bytes} bytes")
            self._requests += 1
            self._bytes += request_bytes

    def release(self, request_bytes: int) -> None:
        """Gives back the place of a request that was never queued."""
        with self._lock:
            self._leave(request_bytes)

    def push(self, lane: Lane, work: Work) -> None:
        """Queues a request that has a place."""
        with self._lock:
            self._pushed += 1
            heapq.heappush(lane.heap, ((-work.priority, work.arrived, self._pushed), work))

    def cancel(self, lane: Lane, key: MessageId) -> bool:
        """Drops a waiting request. Returns whether there was one."""
        with self._lock:
            for index, (_, work) in enumerate(lane.heap):
                if work.key == key:
                    lane.heap[index] = lane.heap[-1]
                    lane.heap.pop()
                    heapq.heapify(lane.heap)
                    self._leave(work.request_bytes)
                    return True
        return False

    def take(self, lane: Lane, *, will_wait: bool, max_reply_bytes: int | None = None) -> Work | None:
        """Returns the lane's first request together with the turn, or None.

        It gets them if the turn is free and no lane that wants it has a more urgent request. The caller computes,
        then calls `pass_turn`.

        will_wait: the caller waits for `wake` if it gets None. Only such lanes are woken, so that a stream whose
            peer does not read its replies delays nobody.
        max_reply_bytes: leave requests with larger replies; None: any.
        """
        with self._lock:
            lane.wanting = False
            if self._turn is None:
                first = self._first_wanting()
                if lane.heap and (first is None or lane.heap[0][0] < first.heap[0][0]):
                    work = lane.heap[0][1]
                    if max_reply_bytes is None or work.reply_bytes <= max_reply_bytes:
                        heapq.heappop(lane.heap)
                        self._leave(work.request_bytes)
                        self._turn = lane
                        return work
                elif first is not None:
                    first.wake()
            lane.wanting = will_wait and bool(lane.heap)
            return None

    def pass_turn(self) -> None:
        """Gives the turn up after computing."""
        with self._lock:
            self._turn = None
            self._wake_first()

    def _wake_first(self) -> None:
        if self._turn is None:
            first = self._first_wanting()
            if first is not None:
                first.wake()

    def _first_wanting(self) -> Lane | None:
        wanting = [lane for lane in self._lanes if lane.wanting and lane.heap]
        return min(wanting, key=lambda lane: lane.heap[0][0]) if wanting else None

    def _leave(self, request_bytes: int) -> None:
        self._requests -= 1
        self._bytes -= request_bytes
