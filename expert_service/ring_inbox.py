"""Frames on their way from a router of this host: taken from shared memory by the thread that serves the
stream.

They stay in the ring until that thread takes them, so nothing but the ring bounds them and no helper is
needed.
"""

from __future__ import annotations

from colibri.deadline import Clock
from colibri.errors import FrameError
from colibri.expert_service.inbox import IDLE_S, Arrival
from colibri.transport._shared_ring import SharedRing
from colibri.transport.shared_memory import SPIN_S


class RingInbox:
    """A FrameInbox (inbox.py) over a ring. Raises FrameError when the router wrote what no ring holds."""

    def __init__(self, ring: SharedRing, clock: Clock) -> None:
        self._ring = ring
        self._clock = clock
        self.ended = False

    def wake(self) -> None:
        self._ring.wake()

    def empty(self) -> bool:
        return not self._ring.ready

    def take(self) -> Arrival | None:
        return self._read(0.0, 0.0)

    def set_busy(self, busy: bool) -> None:
        """Of no use here: frames wait in the ring, whoever is busy."""

    def wait(self) -> Arrival | None:
        return self._read(IDLE_S, SPIN_S)

    def close(self) -> None:
        self.ended = True
        self._ring.close()

    def _read(self, timeout_s: float, spin_s: float) -> Arrival | None:
        try:
            frame = self._ring.read(timeout_s, spin_s)
        except ConnectionError:
            self.ended = True
            return None
        except RuntimeError as error:
            raise FrameError(str(error)) from None
        return None if frame is None else Arrival(self._clock(), frame)
