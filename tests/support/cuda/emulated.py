"""A device that is this machine's CPU: the kernels' own sources run as fibers; copies of weights end late."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from colibri.kernels.cuda.device import Argument, Buffer, DeviceMemoryError, Event

from .build import Library, library_of

Array = NDArray[Any]

#: Bits of a schedule (cuda_on_cpu.h).
LATE_COPIES, DESCENDING = 1, 2


class HostBuffer:
    """Memory of its own malloc (AddressSanitizer watches its bounds), on a 64-byte boundary, filled with 0xff: NaN."""

    def __init__(self, nbytes: int) -> None:
        self._raw = np.full(nbytes + 64, 0xFF, dtype=np.uint8)
        start = -self._raw.ctypes.data % 64
        # The end of the block is the end of the memory, so that what lies behind it is found.
        self.bytes = self._raw[start : start + nbytes] if nbytes % 64 == 0 else self._raw[start:][:nbytes]
        self.pointer = self.bytes.ctypes.data
        self.nbytes = nbytes


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
    ) -> None:
        self.name = "emulated"
        self.architecture = architecture
        self.processors = processors
        self.schedule = schedule
        self.launches: list[tuple[str, int, int]] = []
        self._budget = budget
        self._library = library
        self._copies: dict[int, tuple[Buffer, int, Array]] = {}
        self._events = 0

    def empty(self, nbytes: int) -> Buffer:
        if self._budget is not None and nbytes > self._budget:
            raise DeviceMemoryError(f"memory: budget of {self._budget} bytes, {nbytes} needed")
        return HostBuffer(nbytes)

    def zeros(self, nbytes: int) -> Buffer:
        buffer = HostBuffer(nbytes)
        buffer.bytes[:] = 0
        return buffer

    def upload(self, array: Array) -> Buffer:
        buffer = HostBuffer(array.nbytes)
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
