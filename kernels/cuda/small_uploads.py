"""Pinned memory for small arrays on their way to the device. Copies out of ordinary memory would wait for launches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.cuda.device import Event

_ALIGNMENT = 64


class SmallUploads:
    """Two halves of `memory`, uint8: one is filled while copies out of the other may run.

    mark: returns an event after the copies and launches started so far.
    """

    def __init__(self, memory: NDArray[np.uint8], mark: Callable[[], Event]) -> None:
        self._half = memory.nbytes // 2 // _ALIGNMENT * _ALIGNMENT
        self._memory = memory
        self._mark = mark
        self._busy: list[Event | None] = [None, None]
        self._side = 0
        self._used = 0

    def place(self, source: NDArray[np.uint8]) -> NDArray[np.uint8] | None:
        """Copies `source` into pinned memory; None if it is larger than a half.

        The copy stays whole until the transfer that the caller starts from it next is done.
        """
        room = -(-source.nbytes // _ALIGNMENT) * _ALIGNMENT
        if room > self._half:
            return None
        if self._used + room > self._half:
            self._busy[self._side] = self._mark()
            self._side, self._used = 1 - self._side, 0
            earlier = self._busy[self._side]
            if earlier is not None:
                earlier.wait()
        start = self._side * self._half + self._used
        self._used += room
        placed = self._memory[start : start + source.nbytes]
        placed[:] = source
        return placed
