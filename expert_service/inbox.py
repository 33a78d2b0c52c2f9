"""Pass frames from grpc to the thread that serves their stream.

grpc hands a frame over twice: to the deserialiser, on its event thread, and then to whoever asks the request
iterator for the next one. Frames are taken at the deserialiser. While a stream has nothing to do, its own thread
asks the iterator, as a bare echo would: one hand-over per frame. While it is busy, a helper thread asks in its
place. docs/threads.md has the states.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import NamedTuple, Protocol

from colibri.deadline import Clock

_log = logging.getLogger(__name__)

#: How long the serving thread sleeps at most when nothing wakes it.
IDLE_S = 1.0


class Arrival(NamedTuple):
    """A frame, and when it arrived (monotonic seconds)."""

    when: float
    frame: bytes


class FrameInbox(Protocol):
    """What a stream reads from. Any thread may call `wake` and `empty`; only the serving thread calls the rest.

    ended: nothing more will come.
    take: returns a frame that is there already.
    wait: returns the next frame; None if there is something else to look at: a call of `wake`, the end, or a second
        is over.
    set_busy: says whether the serving thread will not wait here soon.
    close: reads nothing any more.
    """

    ended: bool

    def wake(self) -> None: ...
    def empty(self) -> bool: ...
    def take(self) -> Arrival | None: ...
    def set_busy(self, busy: bool) -> None: ...
    def wait(self) -> Arrival | None: ...
    def close(self) -> None: ...


class Inbox:
    """The inbox of one gRPC stream. `arrived` is the deserialiser. Any thread may call `wake`; only the serving thread
    the rest.

    max_bytes: the helper stops asking while this many bytes wait.
    """

    def __init__(self, max_bytes: int, clock: Clock) -> None:
        self._max_bytes = max_bytes
        self._clock = clock
        self._frames: SimpleQueue[Arrival | None] = SimpleQueue()
        self._requests: Iterator[bytes] = iter(())
        self._changed = threading.Condition()
        self._bytes = 0
        self._asking = False
        self._following = False
        self._busy = False
        self._helper: threading.Thread | None = None
        self.ended = False

    def attach(self, requests: Iterator[bytes]) -> None:
        """Sets the call's request iterator. Nothing arrives before."""
        self._requests = requests

    def arrived(self, frame: bytes) -> bytes:
        # On grpc's event thread, which serves every call of the process: nothing here may wait.
        with self._changed:
            self._bytes += len(frame)
        self._frames.put(Arrival(self._clock(), frame))
        return frame

    def wake(self) -> None:
        """Ends a `wait` of a busy stream."""
        self._frames.put(None)

    def empty(self) -> bool:
        """Whether no frame waits. For any thread."""
        return not self._bytes

    def take(self) -> Arrival | None:
        """Returns a frame that is there already, or None."""
        frames = self._frames
        while not frames.empty():  # nobody else takes any
            item = frames.get()
            if item is not None:
                self._leave(item)
                return item
        return None

    def set_busy(self, busy: bool) -> None:
        """Says whether the serving thread will not wait here soon, or waits for more than a frame."""
        if busy == self._busy:
            return
        with self._changed:
            self._busy = busy
            if busy:
                if self._helper is None:
                    self._helper = threading.Thread(target=self._help, name="colibri-frames", daemon=True)
                    self._helper.start()
                self._changed.notify_all()

    def wait(self) -> Arrival | None:
        """Returns the next frame; None if there is something else to look at: a call of `wake`, the end, or a second
        is over.

        Only a busy stream is sure to notice `wake`.
        """
        with self._changed:
            lead = not self._asking and not self._busy and not self.ended
            self._asking = self._asking or lead
            self._following = not lead
        if lead:
            self._ask()
            with self._changed:
                self._asking = False
            return self.take()
        try:
            item = self._frames.get(timeout=IDLE_S)
        except Empty:
            return None
        finally:
            self._following = False
        if item is not None:
            self._leave(item)
        return item

    def close(self) -> None:
        """Ends the inbox: nothing is read any more."""
        with self._changed:
            self.ended = True
            self._changed.notify_all()
        self.wake()

    def _leave(self, item: Arrival) -> None:
        with self._changed:
            self._bytes -= len(item.frame)
            if self._busy:
                self._changed.notify_all()

    def _ask(self) -> None:
        try:
            next(self._requests)
        except StopIteration:
            self.ended = True
        except Exception as error:
            # grpc raises a bare error here when the peer is gone; the call's own callback says so, too.
            _log.debug("a stream of requests broke: %r", error)
            self.ended = True

    def _help(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self.ended or (self._busy and not self._asking and self._bytes <= self._max_bytes)
                )
                if self.ended:
                    return
                self._asking = True
            self._ask()
            with self._changed:
                self._asking = False
                if self.ended or (self._following and not self._busy):
                    self.wake()
