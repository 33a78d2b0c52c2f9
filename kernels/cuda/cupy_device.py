"""A CUDA device through CuPy: stream-ordered memory within a budget, pinned staging, launches of compiled kernels.

CuPy is imported when a device is opened, never before: the rest of this package works without it.
"""

from __future__ import annotations

import os
import tempfile
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from colibri.kernels.api import Array
from colibri.kernels.cuda.compiler import compile_cubin
from colibri.kernels.cuda.device import (
    INSTALL_CUPY,
    Argument,
    Buffer,
    DeviceError,
    DeviceMemoryError,
    Event,
)
from colibri.kernels.cuda.memory import MemoryBudget
from colibri.kernels.cuda.small_uploads import SmallUploads
from colibri.kernels.cuda.sources import module_of
from colibri.kernels.cuda.staging import SMALL_SHARE

#: Least compute capability: that of bf16 rows by plain FMA, nanosleep and acquire loads.
LEAST_ARCHITECTURE = 70
#: How long a launch or a copy may take.
WAIT_S = 60.0
_SPIN_S = 2e-3
_DEFAULT_SHARED = 48 << 10


class _CupyBuffer:
    """Memory of the pool. The last reference returns it to stream and budget."""

    def __init__(self, memory: Any, nbytes: int, budget: MemoryBudget) -> None:
        self._memory = memory
        self.pointer = int(memory.ptr)
        self.nbytes = nbytes
        weakref.finalize(self, budget.give, nbytes)


class _CupyEvent:
    def __init__(self, event: Any, what: str) -> None:
        self.event = event
        self._what = what

    def wait(self) -> None:
        begin = time.monotonic()
        while not self._done():
            waited = time.monotonic() - begin
            if waited > WAIT_S:
                raise DeviceError(f"{self._what}: expected to be done within {WAIT_S:.0f} s, it is not")
            if waited > _SPIN_S:
                time.sleep(1e-4)

    def _done(self) -> bool:
        try:
            return bool(self.event.done)
        except Exception as error:  # the driver's own types: a launch before it failed
            raise DeviceError(f"{self._what}: expected to succeed, got {error}") from error


class CupyDevice:
    """The device with number `index`.

    memory_bytes: budget of device memory; None: 9/10 of what is free now.
    pinned_bytes: budget of pinned host memory.
    cache: folder of compiled kernels; None: no cache.

    Raises DeviceError without CuPy, NVRTC, a driver or that device.
    """

    def __init__(
        self, index: int, *, memory_bytes: int | None, pinned_bytes: int, cache: Path | None
    ) -> None:
        cupy = import_cupy()
        self._cupy = cupy
        self._runtime = cupy.cuda.runtime
        self._driver = require_driver(cupy)
        count = self._runtime.getDeviceCount()
        if not 0 <= index < count:
            raise DeviceError(f"device: expected cuda:0 .. cuda:{count - 1} ({count} here), got cuda:{index}")
        self._device = cupy.cuda.Device(index)
        self._architecture = int(self._device.compute_capability)
        self.name = f"cuda:{index}"
        if self._architecture < LEAST_ARCHITECTURE:
            raise DeviceError(
                f"device: expected compute capability {LEAST_ARCHITECTURE / 10} or newer, "
                f"got {self._architecture / 10} of {self.name}"
            )
        self._cache = cache
        self._functions: dict[str, Any] = {}
        self._shared: dict[str, int] = {}
        with self._device:
            self._processors = int(self._device.attributes["MultiProcessorCount"])
            free, _ = self._runtime.memGetInfo()
            self._budget = MemoryBudget(f"memory of {self.name}", memory_bytes or free * 9 // 10)
            self._pool = cupy.cuda.MemoryAsyncPool()
            self._stream = cupy.cuda.Stream(non_blocking=True)
            self._beside = cupy.cuda.Stream(non_blocking=True)
        self._pinned_budget = MemoryBudget("dma_buffer_size", pinned_bytes)
        self._small: SmallUploads | None = None

    @property
    def architecture(self) -> int:
        return self._architecture

    @property
    def processors(self) -> int:
        return self._processors

    @property
    def memory(self) -> MemoryBudget:
        return self._budget

    def empty(self, nbytes: int) -> Buffer:
        self._budget.take(nbytes)
        try:
            with self._current():
                return _CupyBuffer(self._pool.malloc(max(nbytes, 1)), nbytes, self._budget)
        except (self._cupy.cuda.memory.OutOfMemoryError, self._runtime.CUDARuntimeError) as error:
            self._budget.give(nbytes)
            free, total = self._free()
            raise DeviceMemoryError(
                f"memory of {self.name}: expected {nbytes} bytes free, got {free} of {total} ({error})"
            ) from error

    def zeros(self, nbytes: int) -> Buffer:
        buffer = self.empty(nbytes)
        self.fill(buffer, 0)
        return buffer

    def fill(self, buffer: Buffer, byte: int) -> None:
        with self._current():
            self._runtime.memsetAsync(buffer.pointer, byte, buffer.nbytes, self._stream.ptr)

    def copy(self, target: Buffer, source: Buffer) -> None:
        """Copies between buffers of equal size."""
        with self._current():
            self._runtime.memcpyAsync(
                target.pointer,
                source.pointer,
                source.nbytes,
                self._runtime.memcpyDeviceToDevice,
                self._stream.ptr,
            )

    def time(self, run: Callable[[], object], rounds: int) -> float:
        """Returns the seconds that what `run` starts takes, by the device's clock: the mean of `rounds` runs after two
        others.
        """
        for _ in range(2):
            run()
        with self._current():
            begin, end = (self._cupy.cuda.Event() for _ in range(2))
            begin.record(self._stream)
        for _ in range(rounds):
            run()
        with self._current():
            end.record(self._stream)
        self.mark().wait()
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) / 1e3 / rounds

    def upload(self, array: Array) -> Buffer:
        source = np.ascontiguousarray(array)
        buffer = self.empty(source.nbytes)
        if source.nbytes:
            placed = self._small_uploads().place(source.reshape(-1).view(np.uint8))
            source = source if placed is None else placed
            with self._current():  # from ordinary memory: returns when the source has been read
                self._runtime.memcpyAsync(
                    buffer.pointer,
                    source.ctypes.data,
                    source.nbytes,
                    self._runtime.memcpyHostToDevice,
                    self._stream.ptr,
                )
        return buffer

    def download(self, buffer: Buffer, shape: Sequence[int], dtype: DTypeLike) -> Array:
        out = np.empty(shape, dtype=dtype)
        self.mark().wait()
        if out.nbytes:
            with self._current():
                self._runtime.memcpy(
                    out.ctypes.data, buffer.pointer, out.nbytes, self._runtime.memcpyDeviceToHost
                )
        return out

    def launch(self, kernel: str, grid: int, threads: int, shared: int, *arguments: Argument) -> None:
        with self._current():
            function = self._functions.get(kernel)
            if function is None:
                function = self._functions[kernel] = self._load(kernel)
            if shared > self._shared.get(kernel, _DEFAULT_SHARED):
                function.max_dynamic_shared_size_bytes = shared
                self._shared[kernel] = shared
            function((grid,), (threads,), tuple(map(_value, arguments)), shared_mem=shared)

    def pinned(self, nbytes: int) -> NDArray[np.uint8]:
        self._pinned_budget.take(nbytes)
        with self._current():
            memory = self._cupy.cuda.alloc_pinned_memory(nbytes)
        return np.frombuffer(memory, dtype=np.uint8, count=nbytes)

    def _small_uploads(self) -> SmallUploads:
        if self._small is None:
            self._small = SmallUploads(self.pinned(self._pinned_budget.limit // SMALL_SHARE), self.mark)
        return self._small

    def copy_beside(
        self, target: Buffer, offset: int, source: NDArray[np.uint8], after: Event | None
    ) -> Event:
        with self._device, self._beside:
            if isinstance(after, _CupyEvent):
                self._beside.wait_event(after.event)
            self._runtime.memcpyAsync(
                target.pointer + offset,
                source.ctypes.data,
                source.nbytes,
                self._runtime.memcpyHostToDevice,
                self._beside.ptr,
            )
            return self._record(self._beside, "a copy of weights")

    def launches_wait(self, event: Event) -> None:
        if isinstance(event, _CupyEvent):
            self._stream.wait_event(event.event)

    def mark(self) -> Event:
        with self._current():
            return self._record(self._stream, "the launches on " + self.name)

    def synchronize(self) -> None:
        self.mark().wait()
        with self._device, self._beside:
            self._record(self._beside, "copies of weights").wait()

    def close(self) -> None:
        self.synchronize()
        self._functions.clear()
        with self._current():
            self._pool.free_all_blocks()

    def _current(self) -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(self._device)
        stack.enter_context(self._stream)
        return stack

    def _record(self, stream: Any, what: str) -> _CupyEvent:
        event = self._cupy.cuda.Event(disable_timing=True)
        event.record(stream)
        return _CupyEvent(event, what)

    def _load(self, kernel: str) -> Any:
        module = module_of(kernel)
        cubin = compile_cubin(module, self._architecture, self._cache, self._driver)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            loaded = self._cupy.RawModule(path=file.name)
            functions = {name: loaded.get_function(name) for name in module.kernels}
            for function in functions.values():
                function.compile()
        self._functions.update(functions)
        return functions[kernel]

    def _free(self) -> tuple[int, int]:
        with self._device:
            free, total = self._runtime.memGetInfo()
            return int(free), int(total)


def import_cupy() -> Any:
    """Imports CuPy. Raises DeviceError if it is not installed.

    Devices are numbered in the order of the PCI bus, unless the environment says otherwise.
    """
    os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    try:
        import cupy
    except ImportError as error:
        raise DeviceError(f"CuPy: expected it installed ({INSTALL_CUPY}), got {error}") from error
    return cupy


def require_driver(cupy: Any) -> int:
    """Returns the driver's version. Raises DeviceError if there is no driver."""
    try:
        version = int(cupy.cuda.runtime.driverGetVersion())
        if version:
            cupy.cuda.runtime.getDeviceCount()
            return version
        reason = "none"
    except cupy.cuda.runtime.CUDARuntimeError as error:
        reason = str(error)
    wanted = cupy.cuda.runtime.runtimeGetVersion() // 1000
    raise DeviceError(f"driver: expected one for NVIDIA cards that CUDA {wanted} can use, got {reason}")


def device_at(address: str) -> int:
    """Returns the number of the device at an address of the PCI bus ('0000:17:00.0'). Raises DeviceError."""
    cupy = import_cupy()
    require_driver(cupy)
    try:
        return int(cupy.cuda.runtime.deviceGetByPCIBusId(address))
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(
            f"device: expected one at {address} that this process may use, got {error}"
        ) from error


def device_architecture(index: int) -> int:
    """Returns the compute capability, 90 for 9.0. Raises DeviceError."""
    cupy = import_cupy()
    require_driver(cupy)
    try:
        return int(cupy.cuda.Device(index).compute_capability)
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise DeviceError(f"device: expected cuda:{index}, got {error}") from error


def device_node(index: int, sysfs: Path = Path("/sys")) -> int:
    """Returns the NUMA node of a device; -1 if the machine does not say. Raises DeviceError."""
    cupy = import_cupy()
    require_driver(cupy)
    address = str(cupy.cuda.runtime.deviceGetPCIBusId(index)).lower()
    try:
        return int((sysfs / "bus" / "pci" / "devices" / address / "numa_node").read_text())
    except (OSError, ValueError):
        return -1


def _value(argument: Argument) -> np.generic:
    if argument is None:
        return np.uint64(0)
    return argument if isinstance(argument, np.generic) else np.uint64(argument.pointer)
