"""What the backend needs of a device: memory, copies, launches. CuPy provides it (cupy_device.py); tests emulate it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from colibri.kernels.api import Array

# Run by this Python: packages of another one would not help.
_PIP = [sys.executable or "python3", "-m", "pip", "install"]
#: A shell command that installs the compiler.
INSTALL_NVRTC = shlex.join([*_PIP, "nvidia-cuda-nvrtc-cu12"])
#: A shell command that installs CuPy, with the compiler.
INSTALL_CUPY = shlex.join([*_PIP, "cupy-cuda12x", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime-cu12"])


class DeviceError(RuntimeError):
    """The device cannot be used, or work on it failed. The message says why and what to do."""


class DeviceMemoryError(DeviceError, MemoryError):
    """An allocation beyond the byte budget, or beyond what the device has; the message names both."""


class Buffer(Protocol):
    """Device memory. The last reference frees it, in the order of the device's work."""

    @property
    def pointer(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


#: What a kernel takes: a buffer (its address), None (a null pointer), or a NumPy scalar of the parameter's own type.
Argument = Buffer | np.generic | None


class Event(Protocol):
    """A point in the order of a device's work."""

    def wait(self) -> None:
        """Waits until everything before it is done. Raises DeviceError after a minute."""
        ...


class Device(Protocol):
    """One device with one order of work (launches, copies between them). Copies of weights run beside it.

    architecture: compute capability, 90 for 9.0.
    processors: number of multiprocessors.

    Raises DeviceError, DeviceMemoryError.
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
        """Returns a copy on the device. `array` may change as soon as this returns."""
        ...

    def download(self, buffer: Buffer, shape: Sequence[int], dtype: DTypeLike) -> Array:
        """Returns the first elements of a buffer, after all work that was started before."""
        ...

    def launch(self, kernel: str, grid: int, threads: int, shared: int, *arguments: Argument) -> None:
        """Starts a kernel of source/.

        grid: number of blocks.
        threads: of a block.
        shared: bytes of dynamic shared memory of a block.
        """
        ...

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        """Allocates page-locked host memory, uint8 [nbytes]."""
        ...

    def copy_beside(
        self, target: Buffer, offset: int, source: NDArray[np.uint8], after: Event | None
    ) -> Event:
        """Starts to copy pinned memory into a buffer, beside launches and not before `after`. Returns the event of its
        end.

        `source` must not change before that event.
        """
        ...

    def launches_wait(self, event: Event) -> None:
        """Lets later launches begin only after the event."""
        ...

    def mark(self) -> Event:
        """Returns an event after the launches so far."""
        ...

    def synchronize(self) -> None:
        """Waits until all work is done."""
        ...

    def close(self) -> None: ...
