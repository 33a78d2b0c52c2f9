"""Frames on their way from a router of this host: taken from shared memory by the thread that serves the
stream.

They stay in the ring until that thread takes them, so nothing but the ring bounds them and no helper is
needed.
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
    """A FrameInbox (inbox.py) over a ring. Raises FrameError when the router wrote what no ring holds."""

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
        """Of no use here: frames wait in the ring, whoever is busy."""

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
    """Raises DeadlineExpired when the router takes no reply, FrameError when it wrote what no ring holds,
    ConnectionError when the link is over. name: of the worker."""
    try:
        taken = ring.write((frame,), SEND_TIMEOUT_S)
    except RuntimeError as error:
        raise FrameError(f"{name}: {error}") from None
    if not taken:
        raise DeadlineExpired(f"{name}: the router took no reply within {SEND_TIMEOUT_S:g} s")
