"""Copy from host to device through a bounded ring of pinned memory: ordinary memory cannot be copied asynchronously."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.cuda.device import Buffer, Device, Event

#: Parts of the ring: one is filled while others are under way.
PARTS = 4
#: One part in so many of all pinned memory is not the ring's but for small arrays.
SMALL_SHARE = 8
LEAST_BYTES = 64 << 10


class StagingRing:
    """The ring. total: bytes of pinned memory, at least LEAST_BYTES, allocated at the first copy. Raises ValueError."""

    def __init__(self, device: Device, total: int) -> None:
        if total < LEAST_BYTES:
            raise ValueError(f"dma_buffer_size: expected at least {LEAST_BYTES} bytes, got {total!r}")
        self._device = device
        self._part = (total - total // SMALL_SHARE) // PARTS // 4096 * 4096
        self._memory: NDArray[np.uint8] | None = None
        self._events: list[Event | None] = [None] * PARTS
        self._next = 0

    @property
    def nbytes(self) -> int:
        """Pinned memory held now."""
        return 0 if self._memory is None else self._memory.nbytes

    def copy(self, target: Buffer, source: NDArray[np.uint8], after: Event | None) -> Event | None:
        """Starts to copy uint8 [n] to the beginning of `target`, not before `after`. Returns once `source` has been
        read.

        Returns the event of the copy's end; None if there is nothing to copy.
        """

        def write(start: int, out: NDArray[np.uint8]) -> None:
            out[:] = source[start : start + len(out)]

        return self.fill(target, source.nbytes, write, after)

    def fill(
        self,
        target: Buffer,
        nbytes: int,
        write: Callable[[int, NDArray[np.uint8]], None],
        after: Event | None,
    ) -> Event | None:
        """Does as copy, with what write(start, out) puts into pinned memory; start is a multiple of 4096."""
        if self._memory is None:
            self._memory = self._device.pinned(self._part * PARTS)
        event: Event | None = None
        for start in range(0, nbytes, self._part):
            size = min(self._part, nbytes - start)
            index = self._next
            self._next = (index + 1) % PARTS
            earlier = self._events[index]
            if earlier is not None:
                earlier.wait()
            pinned = self._memory[index * self._part : index * self._part + size]
            write(start, pinned)
            event = self._events[index] = self._device.copy_beside(target, start, pinned, after)
        return event
