"""What the backend asks of a device: memory, copies, launches. CuPy gives it (cupy_device.py); tests emulate it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from colibri.kernels.api import Array

#: What brings CuPy and the compiler that it needs.
INSTALL_CUPY = "python -m pip install cupy-cuda12x nvidia-cuda-nvrtc-cu12 nvidia-cuda-runtime-cu12"


class DeviceError(RuntimeError):
    """The device cannot be used, or what was started on it failed; the message says why and what to do."""


class DeviceMemoryError(DeviceError, MemoryError):
    """An allocation beyond the byte budget, or beyond what the device has; the message names both."""


class Buffer(Protocol):
    """Device memory, freed with its last reference, in the order of the device's work."""

    @property
    def pointer(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


#: What a kernel takes: a buffer (its address), None (a null pointer), or a NumPy scalar of the parameter's own type.
Argument = Buffer | np.generic | None


class Event(Protocol):
    """A point in the order of a device's work."""

    def wait(self) -> None:
        """Until everything before it is done. Raises DeviceError when that takes longer than a minute."""
        ...


class Device(Protocol):
    """One device, one order of work (launches, copies between them); copies of weights run beside it.

    architecture: compute capability, 90 for 9.0. processors: multiprocessors. Raises DeviceError, DeviceMemoryError.
    """

    @property
    def name(self) -> str: ...

    @property
    def architecture(self) -> int: ...

    @property
    def processors(self) -> int: ...

    def empty(self, nbytes: int) -> Buffer: ...

    def zeros(self, nbytes: int) -> Buffer: ...

    def upload(self, array: Array) -> Buffer:
        """A copy on the device; `array` may change as soon as this returns."""
        ...

    def download(self, buffer: Buffer, shape: Sequence[int], dtype: DTypeLike) -> Array:
        """The first elements of a buffer, after all that was started before."""
        ...

    def launch(self, kernel: str, grid: int, threads: int, shared: int, *arguments: Argument) -> None:
        """Starts a kernel of source/. grid: blocks; shared: bytes of dynamic shared memory of a block."""
        ...

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Page-locked host memory, uint8 [nbytes]."""
        ...

    def copy_beside(
        self, target: Buffer, offset: int, source: NDArray[np.uint8], after: Event | None
    ) -> Event:
        """Starts copying pinned memory into a buffer, beside launches, not before `after`. `source` must not change
        before the event."""
        ...

    def launches_wait(self, event: Event) -> None:
        """Later launches begin after the event."""
        ...

    def mark(self) -> Event:
        """The launches so far."""
        ...

    def synchronize(self) -> None:
        """Until all work is done."""
        ...

    def close(self) -> None: ...
