"""The pool of threads: named, pinned, asleep when idle, serialised, ended by close; and its huge-page memory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from colibri.kernels import _native
from colibri.kernels.api import ComputeMode
from colibri.kernels.cpu.backend import CpuBackend

#: Enough bytes that a job is shared with the other threads.
LARGE = 8 << 20


def workers() -> dict[str, int]:
    """Name -> thread id of this process's kernel threads."""
    found = {}
    for task in Path("/proc/self/task").iterdir():
        try:
            name = (task / "comm").read_text().strip()
        except FileNotFoundError:
            continue
        if name.startswith("colibri-k"):
            found[f"{name}/{task.name}"] = int(task.name)
    return found


def cpu_seconds(thread: int) -> float:
    return int(Path(f"/proc/self/task/{thread}/schedstat").read_text().split()[0]) / 1e9


def sum_of(data: np.ndarray) -> int:
    return int(data.view(np.uint64).sum(dtype=np.uint64))


def test_threads_are_named_and_ended() -> None:
    before = set(workers())
    backend = CpuBackend(3)
    deadline = time.monotonic() + 10
    while len(workers()) < len(before) + 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert sorted(name.split("/")[0] for name in set(workers()) - before) == ["colibri-k1", "colibri-k2"]
    backend.close()
    assert set(workers()) == before
    backend.close()  # again: nothing happens
    with pytest.raises(RuntimeError, match="this backend is closed"):
        backend.add_inplace(np.ones((1, 1), np.float32), np.ones((1, 1), np.float32))


def test_a_dropped_backend_ends_its_threads() -> None:
    before = set(workers())
    backend = CpuBackend(2)
    del backend
    gc.collect()
    assert set(workers()) == before


def test_pool_threads_are_pinned_and_the_caller_is_not() -> None:
    mine = os.sched_getaffinity(0)
    cpus = sorted(mine)
    before = set(workers())
    backend = CpuBackend(3, cpus=cpus)
    for name in set(workers()) - before:
        index = int(name.split("/")[0].removeprefix("colibri-k"))
        assert os.sched_getaffinity(workers()[name]) == {cpus[index % len(cpus)]}
    assert os.sched_getaffinity(0) == mine
    backend.close()


def test_idle_threads_sleep() -> None:
    before = set(workers())
    backend = CpuBackend(3)
    data = np.ones(LARGE, np.uint8)
    for _ in range(20):
        assert backend.read_pass(data) == sum_of(data)
    mine = [workers()[name] for name in set(workers()) - before]
    time.sleep(0.05)
    start = sum(cpu_seconds(t) for t in mine)
    time.sleep(2.0)
    assert len(mine) == 2
    assert sum(cpu_seconds(t) for t in mine) - start < 0.05
    backend.close()


def test_every_item_is_done_once(rng: np.random.Generator) -> None:
    """Hot, after sleeping, and with more threads than CPUs; a sum shows what is left out or done twice."""
    backend = CpuBackend(5)
    for turn in range(300):
        data = rng.integers(0, 256, 64 * int(rng.integers(1, 20_000)), dtype=np.uint8)
        assert backend.read_pass(data) == sum_of(data)
        if turn % 50 == 0:
            time.sleep(0.002)
    backend.close()


def test_calls_from_several_threads_are_serialised(rng: np.random.Generator) -> None:
    """Each sees its own result; scratch memory is not shared while in use, and the GIL is free meanwhile."""
    backend = CpuBackend(2)
    weight = rng.standard_normal((300, 256)).astype(np.float32)
    packed = backend.pack_linear(weight, ComputeMode.FP32)
    inputs = [rng.standard_normal((rows, 256)).astype(np.float32) for rows in (1, 7, 40, 90)]
    expected = [backend.linear(x, packed) for x in inputs]
    wrong: list[int] = []

    def call(index: int) -> None:
        for _ in range(40):
            if backend.linear(inputs[index], packed).tobytes() != expected[index].tobytes():
                wrong.append(index)

    threads = [threading.Thread(target=call, args=(i,)) for i in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    backend.close()


#: In a process of its own: gRPC, if a test before this one used it, may hold a process that forks for ever.
FORK = """
import os, sys
import numpy as np
from colibri.kernels.cpu.backend import CpuBackend

backend = CpuBackend(2)
data = np.ones(int(sys.argv[1]), np.uint8)
before = backend.read_pass(data)
child = os.fork()
if child == 0:
    code = 1
    try:
        backend.read_pass(data)
    except RuntimeError as error:
        code = 0 if "made before a fork" in str(error) else 2
    backend.close()
    del backend
    os._exit(code)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert backend.read_pass(data) == before
backend.close()
print("told")
"""


def test_a_forked_child_is_told() -> None:
    """The pool's threads are not in it; no hang, neither in a call nor at the end."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(LARGE)], stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    assert done.stdout == "told\n"


@pytest.mark.parametrize("size", [0, 1, 63, 64, 4097, (1 << 20) - 1, 1 << 20, (2 << 20) + 1, 5 << 20])
def test_memory_is_aligned_zeroed_and_freed(size: int) -> None:
    data = _native.alloc(size)
    assert data.shape == (size,)
    assert data.dtype == np.uint8
    assert data.flags.writeable
    assert data.ctypes.data % ((2 << 20) if size >= 1 << 20 else 64) == 0
    assert not data.any()
    data[:] = 1
    address = data.ctypes.data
    view = data[size // 2 :]
    del data
    gc.collect()
    assert view.size == 0 or view[0] == 1  # a view keeps the block
    del view
    gc.collect()
    if size >= 2 << 20:
        assert not _mapped(address)


def _mapped(address: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(x, 16) for x in line.split()[0].split("-"))
        if low <= address < high:
            return True
    return False
