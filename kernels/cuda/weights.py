"""Weights on the device: copied at first use, within a byte budget; the least recently used leave first."""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.cuda.device import Buffer, Device, DeviceMemoryError, Event
from colibri.kernels.cuda.expanding import Expansion
from colibri.kernels.cuda.plan import waves
from colibri.kernels.cuda.staging import StagingRing

Bytes = NDArray[np.uint8]


@dataclass(slots=True)
class _Held:
    """A copy on the device. source: the array it copies; used: the launches that read it last (None: ask the
    device).
    """

    buffer: Buffer
    source: weakref.ref[Bytes]
    ready: Event | None
    used: Event | None = None


class WeightCache:
    """Copies of host arrays, by identity: an array's bytes must not change after its first use.

    budget: bytes on the device.
    dma_buffer_size: of the staging ring.

    Raises ValueError naming the argument.
    """

    def __init__(self, device: Device, budget: int, dma_buffer_size: int) -> None:
        if budget < 1:
            raise ValueError(f"weight_bytes: expected at least 1 byte, got {budget!r}")
        self._device = device
        self._budget = budget
        self._ring = StagingRing(device, dma_buffer_size)
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._bytes = 0
        self._gone: deque[int] = deque()

    @property
    def nbytes(self) -> int:
        """Bytes on the device now."""
        self._forget_gone()
        return self._bytes

    def clear(self) -> None:
        self._device.synchronize()
        self._held.clear()
        self._bytes = 0

    def use(self, arrays: list[Bytes]) -> list[Buffer]:
        """Returns buffers that the next launches may read, all at once. Raises DeviceMemoryError if they exceed the
        budget.
        """
        return next(self.stream([arrays]))

    def runs(self, sizes: list[int]) -> list[list[int]]:
        """Cuts the indices of `sizes` into runs for `stream`: one run if all fit, else runs of half the budget, so
        that one is copied while the one before it computes.
        """
        return waves(sizes, self._budget if sum(sizes) <= self._budget else self._budget // 2)

    def stream(self, runs: list[list[Bytes]], expand: Expansion | None = None) -> Iterator[list[Buffer]]:
        """Yields the buffers of each run. The next run's copies start when it is asked for, that is, after the caller
        has launched the kernels that read this one.

        expand: what arrays become on their way; always the same for an array.
        """
        before: list[_Held] = []
        self._forget_gone()
        for arrays in runs:
            different = {id(array): array for array in arrays}.values()
            need = sum(array.nbytes if expand is None else expand.nbytes for array in different)
            if need > self._budget:
                raise DeviceMemoryError(
                    f"weight_bytes: expected at least the {need} bytes that one launch reads, got {self._budget}"
                )
            kept = {id(array) for array in arrays}
            now = [self._place(array, kept, before, expand) for array in arrays]
            for held in now:
                if held.ready is not None:
                    self._device.launches_wait(held.ready)
                    held.ready = None
            yield [held.buffer for held in now]
            mark = self._device.mark()
            for held in now:
                held.used = mark
            before = now

    def _place(self, array: Bytes, kept: set[int], before: list[_Held], expand: Expansion | None) -> _Held:
        """Returns the held copy of an array, made if necessary.

        kept: arrays that must stay.
        before: copies that launches may still read; they leave only if nothing else can.
        """
        key = id(array)
        held = self._held.get(key)
        if held is not None and held.source() is array:
            self._held.move_to_end(key)
            held.used = None
            return held
        if held is not None:
            self._drop(key)
        nbytes = array.nbytes if expand is None else expand.nbytes
        left: list[_Held] = []
        while self._bytes + nbytes > self._budget:
            candidates = [k for k in self._held if k not in kept]
            idle = [k for k in candidates if not any(self._held[k] is each for each in before)]
            left.append(self._drop((idle or candidates)[0]))
        buffer, after = self._memory(nbytes, left)
        held = _Held(buffer, weakref.ref(array, partial(_say_gone, self._gone, key)), None)
        if expand is None:
            held.ready = self._ring.copy(buffer, array, after)
        else:
            held.ready = self._ring.fill(buffer, nbytes, partial(expand.write, array), after)
        self._held[key] = held
        self._bytes += nbytes
        return held

    def _memory(self, nbytes: int, left: list[_Held]) -> tuple[Buffer, Event]:
        """Returns device memory, and what must be done before it is written. Reuses a buffer that left, if one has the
        size.
        """
        for held in left:
            if held.buffer.nbytes == nbytes:
                return held.buffer, held.used or self._device.mark()
        if left:
            self._device.synchronize()  # frees are ordered by launches alone, copies run beside them
            left.clear()
        return self._device.empty(nbytes), self._device.mark()

    def _drop(self, key: int) -> _Held:
        held = self._held.pop(key)
        self._bytes -= held.buffer.nbytes
        return held

    def _forget_gone(self) -> None:
        """Forgets copies of host arrays that are gone. Their finalisers run at any time and only leave a note."""
        while self._gone:
            key = self._gone.popleft()
            held = self._held.get(key)
            if held is not None and held.source() is None:
                if held.ready is not None:
                    held.ready.wait()
                self._drop(key)


def _say_gone(gone: deque[int], key: int, _: object) -> None:
    gone.append(key)
