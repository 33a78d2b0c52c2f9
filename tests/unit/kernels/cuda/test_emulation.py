"""The emulation that the kernels' proof rests on: barriers, warps and late copies behave as a GPU's, misuse ends the
process; and CuPy has every name that the device uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from colibri.kernels.cuda.sources import Module
from tests.support.cuda.build import ROOT, Library, build

_SOURCE = """#include "seam.cuh"
extern "C" __global__ void reverse(u32* x) {
  DYNAMIC_SHARED(shared);
  ((u32*)shared)[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = ((u32*)shared)[blockDim.x - 1 - threadIdx.x];
}
extern "C" __global__ void lanes(u32* x) {
  u32 lane = threadIdx.x % 32;
  x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, lane, 5) * 10000 + __shfl_down_sync(0xffffffffu, lane, 3, 16) * 100 +
                   __shfl_up_sync(0xffffffffu, lane, 1);
}
extern "C" __global__ void late(u32* x) {
  DYNAMIC_SHARED(shared);
  for (int i = 0; i < 2; i++) {
    copy_async(shared + (threadIdx.x * 2 + i) * 16, x + threadIdx.x * 4, true);
    copy_commit();
  }
  copy_wait<1>();
  u32 first = *(u32*)(shared + threadIdx.x * 32), second = *(u32*)(shared + threadIdx.x * 32 + 16);
  copy_wait<0>();
  x[threadIdx.x * 4] = first;
  x[threadIdx.x * 4 + 1] = second;
  x[threadIdx.x * 4 + 2] = *(u32*)(shared + threadIdx.x * 32 + 16);
}
extern "C" __global__ void divergent(u32* x) {
  if (threadIdx.x % 2) __syncthreads();
  else __syncwarp();
  x[0] = 1;
}
extern "C" __global__ void ended(u32* x) {
  if (threadIdx.x < 32) return;
  __syncthreads();
  x[0] = 1;
}
extern "C" __global__ void unaligned(u32* x) {
  DYNAMIC_SHARED(shared);
  copy_async(shared, x + 1, true);
}
extern "C" __global__ void vain(u32* x) { wait_for(x, 7); }
"""
_MODULE = Module(
    "sample_of_emulation",
    _SOURCE,
    ("reverse", "lanes", "late", "divergent", "ended", "unaligned", "vain"),
    75,
)


@pytest.fixture(scope="module")
def path() -> Path:
    return build(_MODULE)


def start(path: Path, kernel: str, x: np.ndarray, threads: int, shared: int = 0, schedule: int = 0) -> None:
    Library(path).start(kernel, 1, threads, shared, [np.uint64(x.ctypes.data).tobytes()], schedule)


@pytest.mark.parametrize("schedule", range(4))
def test_a_block_meets_at_its_barrier(path: Path, schedule: int) -> None:
    x = np.arange(96, dtype=np.uint32)
    start(path, "reverse", x, 96, 96 * 4, schedule)
    assert x.tolist() == list(range(95, -1, -1))


@pytest.mark.parametrize("schedule", [0, 2])
def test_lanes_exchange(path: Path, schedule: int) -> None:
    x = np.zeros(64, dtype=np.uint32)
    start(path, "lanes", x, 64, 0, schedule)
    down = [lane + 3 if lane % 16 + 3 < 16 else lane for lane in range(32)]
    expected = [(lane ^ 5) * 10000 + down[lane] * 100 + max(lane - 1, 0) for lane in range(32)]
    assert x.tolist() == expected * 2


def test_copies_are_as_late_as_their_wait_allows(path: Path) -> None:
    for schedule, second in ((0, 5), (1, 0xFFFFFFFF)):
        x = np.full(32 * 4, 5, dtype=np.uint32)
        # A view whose first byte lies on a 16-byte boundary.
        raw = np.zeros(x.nbytes + 16, dtype=np.uint8)
        at = -raw.ctypes.data % 16
        aligned = raw[at : at + x.nbytes].view(np.uint32)
        aligned[:] = x
        start(path, "late", aligned, 32, 32 * 32, schedule)
        assert aligned.reshape(32, 4)[:, 0].tolist() == [5] * 32
        assert aligned.reshape(32, 4)[:, 1].tolist() == [second] * 32
        assert aligned.reshape(32, 4)[:, 2].tolist() == [5] * 32


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("divergent", "a warp operation without all of its lanes"),
        ("ended", "a block's barrier after some of its threads have ended"),
        ("unaligned", "an asynchronous copy off a 16-byte boundary"),
        ("vain", "a wait for what no block has done"),
    ],
)
def test_misuse_ends_the_process(path: Path, kernel: str, words: str) -> None:
    code = (
        "import numpy as np, sys; from pathlib import Path; from tests.support.cuda.build import Library; "
        f"x = np.zeros(64, np.uint32); Library(Path({str(path)!r})).start({kernel!r}, 1, 64, 64, "
        "[np.uint64(x.ctypes.data).tobytes()], 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == -6
    assert words in done.stderr


def test_a_launch_with_other_arguments_is_refused(path: Path) -> None:
    with pytest.raises(TypeError, match="the size of number 1 is wrong"):
        Library(path).start("reverse", 1, 32, 128, [np.uint32(1).tobytes()], 0)
    with pytest.raises(TypeError, match="their number is wrong"):
        Library(path).start("reverse", 1, 32, 128, [], 0)


def test_cupy_has_what_the_device_uses() -> None:
    cupy = pytest.importorskip("cupy")
    runtime = cupy.cuda.runtime
    for name in (
        *("memcpyAsync", "memcpy", "memsetAsync", "memGetInfo", "driverGetVersion", "getDeviceCount"),
        *("memcpyHostToDevice", "memcpyDeviceToHost", "memcpyDeviceToDevice", "CUDARuntimeError"),
        *("runtimeGetVersion", "deviceGetPCIBusId"),
    ):
        assert hasattr(runtime, name), name
    for owner, names in (
        (cupy.cuda.Stream, ("wait_event", "__enter__")),
        (cupy.cuda.Event, ("done", "record")),
        (cupy.cuda.MemoryAsyncPool, ("malloc", "free_all_blocks")),
        (cupy.cuda.memory, ("OutOfMemoryError",)),
        (cupy.cuda, ("alloc_pinned_memory", "get_elapsed_time")),
        (cupy.RawModule, ("get_function",)),
        (cupy.RawKernel, ("compile", "max_dynamic_shared_size_bytes", "__call__")),
        (cupy.cuda.Device, ("attributes", "compute_capability", "__enter__")),
    ):
        for name in names:
            assert hasattr(owner, name), f"{owner}: {name}"
