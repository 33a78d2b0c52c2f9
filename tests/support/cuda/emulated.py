"""A device that is this machine's CPU: the kernels' own sources run as fibers; copies of weights end late."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from colibri.kernels.cuda.device import Argument, Buffer, DeviceMemoryError, Event

from .build import Library, library_of

Array = NDArray[Any]

#: Bits of a schedule (cuda_on_cpu.h).
LATE_COPIES, DESCENDING = 1, 2


#: Bytes behind a buffer that no kernel may write.
_GUARD = 64


class HostBuffer:
    """Memory filled with 0xff: NaN. guarded: on a 64-byte boundary, what lies behind it is looked after; else it is a
    block of malloc's own, whose bounds AddressSanitizer watches."""

    def __init__(self, nbytes: int, guarded: bool = True) -> None:
        raw = np.full(nbytes + (64 + _GUARD if guarded else 0), 0xFF, dtype=np.uint8)
        start = -raw.ctypes.data % 64 if guarded else 0
        self.bytes = raw[start : start + nbytes]
        self._behind = raw[start + nbytes : start + nbytes + _GUARD]
        self.pointer = raw.ctypes.data + start
        self.nbytes = nbytes

    def check(self) -> None:
        assert (self._behind == 0xFF).all(), "a kernel wrote behind a buffer"


class HostEvent:
    def __init__(self, device: EmulatedDevice, number: int) -> None:
        self._device, self._number = device, number

    def wait(self) -> None:
        self._device.finish(self._number)


class EmulatedDevice:
    """architecture: as if of that card. schedule: how kernels run. budget: bytes of memory at once.

    Work of launches happens at once; copies beside them only when somebody waits for their event, so that a missing
    wait shows as poison."""

    def __init__(
        self,
        architecture: int = 80,
        *,
        schedule: int = 0,
        budget: int | None = None,
        processors: int = 3,
        library: Callable[[str], Library] = library_of,
        guarded: bool = True,
    ) -> None:
        self.name = "emulated"
        self.architecture = architecture
        self.processors = processors
        self.schedule = schedule
        self.launches: list[tuple[str, int, int]] = []
        self._budget = budget
        self._library = library
        self._guarded = guarded
        self._buffers: weakref.WeakSet[HostBuffer] = weakref.WeakSet()
        self._copies: dict[int, tuple[Buffer, int, Array]] = {}
        self._events = 0

    def empty(self, nbytes: int) -> Buffer:
        if self._budget is not None and nbytes > self._budget:
            raise DeviceMemoryError(f"memory: budget of {self._budget} bytes, {nbytes} needed")
        buffer = HostBuffer(nbytes, self._guarded)
        self._buffers.add(buffer)
        return buffer

    def zeros(self, nbytes: int) -> Buffer:
        buffer = self.empty(nbytes)
        assert isinstance(buffer, HostBuffer)
        buffer.bytes[:] = 0
        return buffer

    def upload(self, array: Array) -> Buffer:
        buffer = self.empty(array.nbytes)
        assert isinstance(buffer, HostBuffer)
        buffer.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return buffer

    def download(self, buffer: Buffer, shape: Sequence[int], dtype: DTypeLike) -> Array:
        assert isinstance(buffer, HostBuffer)
        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        return buffer.bytes[:nbytes].copy().view(dtype).reshape(shape)

    def launch(self, kernel: str, grid: int, threads: int, shared: int, *arguments: Argument) -> None:
        self.launches.append((kernel, grid, threads))
        values = [_bytes(argument) for argument in arguments]
        self._library(kernel).start(kernel, grid, threads, shared, values, self.schedule)
        for buffer in self._buffers:
            buffer.check()

    def pinned(self, nbytes: int) -> Array:
        return np.full(nbytes, 0xFF, dtype=np.uint8)

    def copy_beside(self, target: Buffer, offset: int, source: Array, after: Event | None) -> Event:
        self._events += 1
        self._copies[self._events] = (target, offset, source)
        return HostEvent(self, self._events)

    def launches_wait(self, event: Event) -> None:
        event.wait()

    def mark(self) -> Event:
        return HostEvent(self, 0)

    def finish(self, number: int) -> None:
        """Copies happen in order."""
        for each in sorted(self._copies):
            if each <= number:
                target, offset, source = self._copies.pop(each)
                assert isinstance(target, HostBuffer)
                target.bytes[offset : offset + source.nbytes] = source

    def synchronize(self) -> None:
        self.finish(self._events)

    def close(self) -> None:
        self._copies.clear()


def _bytes(argument: Argument) -> bytes:
    if argument is None:
        return np.uint64(0).tobytes()
    if isinstance(argument, np.generic):
        return argument.tobytes()
    return np.uint64(argument.pointer).tobytes()
