"""Take frames from a router of this host out of shared memory, on the thread that serves the stream.

Frames stay in the ring until that thread takes them. So the ring alone bounds them, and no helper is needed.
"""

from __future__ import annotations

import threading

from colibri.deadline import Clock
from colibri.errors import DeadlineExpired, FrameError
from colibri.expert_service.inbox import IDLE_S, Arrival
from colibri.transport._shared_ring import SharedRing
from colibri.transport.link import SEND_TIMEOUT_S
from colibri.transport.shared_memory import SPIN_S


class RingInbox:
    """A FrameInbox (inbox.py) over a ring. Raises FrameError if the router wrote what no ring holds."""

    def __init__(self, ring: SharedRing, clock: Clock) -> None:
        self._ring = ring
        self._clock = clock
        self._woken = threading.Event()
        self.ended = False

    def wake(self) -> None:
        self._woken.set()
        self._ring.wake()

    def empty(self) -> bool:
        return not self._ring.ready

    def take(self) -> Arrival | None:
        return self._read(0.0, 0.0)

    def set_busy(self, busy: bool) -> None:
        """Does nothing: frames wait in the ring whether the stream is busy or not."""

    def wait(self) -> Arrival | None:
        if not self.ended:
            return self._read(IDLE_S, SPIN_S)
        # A closed ring keeps nobody waiting, and what came before the close may still wait for its turn.
        self._woken.wait(IDLE_S)
        self._woken.clear()
        return None

    def close(self) -> None:
        self.ended = True
        self._ring.close()
        self._woken.set()

    def _read(self, timeout_s: float, spin_s: float) -> Arrival | None:
        try:
            frame = self._ring.read(timeout_s, spin_s)
        except ConnectionError:
            self.ended = True
            return None
        except RuntimeError as error:
            raise FrameError(str(error)) from None
        return None if frame is None else Arrival(self._clock(), frame)


def write_reply(ring: SharedRing, frame: bytes, name: str) -> None:
    """Writes a reply into the ring.

    name: of the worker, for errors.

    Raises DeadlineExpired if the router takes no reply, FrameError if it wrote what no ring holds, ConnectionError
    if the link is over.
    """
    try:
        taken = ring.write((frame,), SEND_TIMEOUT_S)
    except RuntimeError as error:
        raise FrameError(f"{name}: {error}") from None
    if not taken:
        raise DeadlineExpired(f"{name}: the router took no reply within {SEND_TIMEOUT_S:g} s")
