"""Find the device that `auto`, `cpu` or `cuda:N` means here, and open the backend on it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from colibri.kernels.api import Backend
from colibri.kernels.cuda.backend import BLOCK_SIZE, DMA_BUFFER_SIZE, CudaBackend
from colibri.kernels.cuda.cupy_device import (
    CupyDevice,
    device_architecture,
    device_at,
    device_node,
    import_cupy,
    require_driver,
)
from colibri.kernels.cuda.device import DeviceError
from colibri.kernels.cuda.plan import family_of

_CUDA = re.compile(r"cuda:(0|[1-9]\d{0,2})")
_ADDRESS = re.compile(r"cuda:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])")
#: Of the device's budget, what weights may take; the rest is for rows between kernels.
_WEIGHT_SHARE = (3, 4)


def parse_device(value: str) -> str:
    """Returns 'auto', 'cpu', 'cuda:N' or 'cuda:ADDRESS' (of the PCI bus) unchanged. Raises ValueError for anything
    else.
    """
    if value in ("auto", "cpu") or _CUDA.fullmatch(value) or _ADDRESS.fullmatch(value):
        return value
    raise ValueError(f"device: expected auto, cpu, cuda:N or cuda:PCI-ADDRESS, got {value!r}")


def choose_device(value: str, say: Callable[[str], None]) -> int | None:
    """Returns the CUDA device to use; None for the CPU.

    value: `auto` takes the first device if it can be used, else the CPU, and says which.

    Raises ValueError for what parse_device refuses; DeviceError if an address cannot be looked up.
    """
    if parse_device(value) == "cpu":
        return None
    if _ADDRESS.fullmatch(value):
        return device_at(value.removeprefix("cuda:"))
    if value != "auto":
        return int(value.removeprefix("cuda:"))
    try:
        cupy = import_cupy()
        require_driver(cupy)
        if int(cupy.cuda.runtime.getDeviceCount()) == 0:
            raise DeviceError("device: expected one, got none")
    except DeviceError as error:
        say(f"device auto: the CPU ({error})")
        return None
    say("device auto: cuda:0")
    return 0


def require_cuda() -> None:
    """Raises DeviceError if this process can use no GPU at all: no CuPy, or no driver."""
    require_driver(import_cupy())


def may_use(address: str) -> bool:
    """Whether this process can use the card at an address of the PCI bus."""
    try:
        device_at(address)
    except DeviceError:
        return False
    return True


def family_at(address: str) -> str:
    """Returns the instruction family of the card at a PCI address, as its numerics id names it. Raises DeviceError."""
    return family_of(device_architecture(device_at(address)))


def check_node(index: int, device: int, worker: int) -> None:
    """Raises DeviceError if a device is on another NUMA node than its worker (-1: unknown, or any)."""
    if device >= 0 and worker >= 0 and device != worker:
        raise DeviceError(
            f"numa_node: expected {device}, the node of cuda:{index}, got {worker} (--numa-node {device})"
        )


def open_cuda(
    index: int,
    *,
    numa_node: int,
    cache: Path | None,
    memory_bytes: int | None = None,
    block_size: int = BLOCK_SIZE,
    dma_buffer_size: int = DMA_BUFFER_SIZE,
    packer: Backend | None = None,
    int4_on: str = "gpu",
) -> CudaBackend:
    """Opens the backend on device `index`.

    numa_node: of the worker; -1: any.
    cache: folder of compiled kernels.
    memory_bytes: budget of device memory; None: 9/10 of what is free.

    Raises DeviceError without CuPy, a driver or that device, or for another NUMA node; ValueError naming an
    argument.
    """
    check_node(index, device_node(index), numa_node)
    device = CupyDevice(index, memory_bytes=memory_bytes, pinned_bytes=dma_buffer_size, cache=cache)
    part, whole = _WEIGHT_SHARE
    return CudaBackend(
        device,
        weight_bytes=device.memory.limit * part // whole,
        block_size=block_size,
        dma_buffer_size=dma_buffer_size,
        packer=packer,
        int4_on=int4_on,
    )
