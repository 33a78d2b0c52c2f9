"""Pinning for real where this machine allows it, in processes of their own; the arithmetic by itself."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.errors import ConfigError, PinningRefused
from colibri.expert_service.cpu_locks import CpuLocks
from colibri.expert_service.pinning import (
    SAMPLED_PAGES,
    bind,
    bind_memory,
    misplaced,
    nodes_of_pages,
    pin_cpus,
    prefer_memory,
    read_placement,
    sample_pages,
)
from colibri.expert_service.read_bandwidth import measure_read_bandwidth
from tests.support.cpu_holder import holder

PAGE = os.sysconf("SC_PAGE_SIZE")


class Span:
    """A buffer at an address of one's choice."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.nbytes = nbytes
        self.__array_interface__ = {"data": (address, False)}


def in_a_process(program: str) -> Any:
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_pinning_reaches_every_thread() -> None:
    cpu = max(os.sched_getaffinity(0))
    seen = in_a_process(
        "import json, os, threading\n"
        "from colibri.expert_service.pinning import pin_cpus, read_placement\n"
        "go, seen = threading.Event(), []\n"
        "def look():\n"
        "    go.wait(30)\n"
        "    seen.append(sorted(os.sched_getaffinity(0)))\n"
        "before = threading.Thread(target=look); before.start()\n"
        f"pin_cpus(({cpu},))\n"
        "after = threading.Thread(target=look); after.start()\n"
        "go.set(); before.join(); after.join()\n"
        "print(json.dumps([*seen, list(read_placement([]).cpus)]))\n"
    )
    assert seen == [[cpu]] * 3


def test_memory_is_bound_and_read_back() -> None:
    pages = in_a_process(
        "import json\n"
        "from colibri.expert_service.pinning import bind_memory, read_placement\n"
        "bind_memory(0)\n"
        "import numpy as np\n"
        "print(json.dumps(read_placement([np.ones(1 << 20, np.uint8)]).pages_by_node))\n"
    )
    assert set(pages) == {"0"}
    assert 1 <= pages["0"] <= SAMPLED_PAGES


def test_this_module_loads_nothing_heavy() -> None:
    heavy = in_a_process(
        "import json, sys\n"
        "import colibri.deployment.expert_place, colibri.expert_service.worker\n"
        "print(json.dumps([name for name in ('numpy', 'grpc', 'google.protobuf') if name in sys.modules]))\n"
    )
    assert heavy == []


def test_cpus_that_do_not_exist() -> None:
    before = os.sched_getaffinity(0)
    with pytest.raises(ConfigError, match=r"cpus: expected CPUs of this machine, of \[.*\], got \[4095\]"):
        pin_cpus((4095,))
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("bound", [bind_memory, prefer_memory])
@pytest.mark.parametrize("node", [1023, 1024, 1 << 20])
def test_nodes_that_do_not_exist(bound: Callable[[int], None], node: int) -> None:
    with pytest.raises(ConfigError, match=r"numa_node: expected"):
        bound(node)


@pytest.mark.skipif(Path("/sys/devices/system/node/node1").exists(), reason="this machine has a node 1")
def test_the_kernels_refusal_of_a_node_is_told() -> None:
    expected = "numa_node: expected a node whose memory this process may use, got 1 (Invalid argument)"
    with pytest.raises(ConfigError) as caught:
        bind_memory(1)
    assert caught.value.message == expected


class Kernel:
    """Notes system calls and answers them."""

    def __init__(self, result: int = 0, error: int = 0, statuses: Sequence[int] = ()) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._answer = result, error
        self._statuses = statuses

    def __call__(self, number: int, *arguments: object) -> tuple[int, int]:
        self.calls.append((number, *arguments))
        if self._statuses:
            for index, status in enumerate(self._statuses):
                arguments[4][index] = status  # type: ignore[index]
        return self._answer


@pytest.mark.parametrize(("bound", "policy"), [(bind_memory, 2), (prefer_memory, 1)])
@pytest.mark.parametrize("node", [0, 1, 63, 64, 1023])
@pytest.mark.parametrize(("machine", "number"), [("x86_64", 238), ("aarch64", 237)])
def test_arguments_of_set_mempolicy(
    monkeypatch: pytest.MonkeyPatch, bound: Any, policy: int, node: int, machine: str, number: int
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    kernel = Kernel()
    bound(node, kernel)
    ((called, mode, mask, maxnode),) = kernel.calls
    assert (called, mode) == (number, policy)
    bits = int.from_bytes(bytes(mask), sys.byteorder)  # type: ignore[call-overload]
    assert bits == 1 << node
    assert maxnode.value == 8 * len(bytes(mask)) + 1  # type: ignore[attr-defined,call-overload]
    with pytest.raises(ConfigError, match=rf"got {node} \(Operation not permitted\)"):
        bound(node, Kernel(-1, errno.EPERM))


def test_no_node_asked_for_is_no_call() -> None:
    kernel = Kernel()
    bind_memory(-1, kernel)
    assert kernel.calls == []
    assert nodes_of_pages([], kernel) == {}
    assert kernel.calls == []


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 279), ("aarch64", 239)])
def test_arguments_of_move_pages(monkeypatch: pytest.MonkeyPatch, machine: str, number: int) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    kernel = Kernel(statuses=(0, 1, -errno.ENOENT, 1))
    assert nodes_of_pages([PAGE, 2 * PAGE, 3 * PAGE, 4 * PAGE], kernel) == {0: 1, 1: 2, -1: 1}
    ((called, pid, count, addresses, nodes, _, flags),) = kernel.calls
    assert (called, pid, nodes, flags) == (number, 0, None, 0)
    assert count.value == 4  # type: ignore[attr-defined]
    assert list(addresses) == [PAGE, 2 * PAGE, 3 * PAGE, 4 * PAGE]  # type: ignore[call-overload]
    assert nodes_of_pages([PAGE], Kernel(-1, errno.ENOSYS)) == {}


def test_a_machine_whose_calls_are_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(ConfigError, match="numa_node: expected -1 on riscv64"):
        bind_memory(0, Kernel())


@dataclass(frozen=True)
class Where:
    numa_node: int
    cpus: tuple[int, ...]
    oversubscribed: bool = False


def test_binding_leaves_everything_as_it_is_when_a_cpu_is_anothers(tmp_path: Path) -> None:
    cpu = max(os.sched_getaffinity(0))
    before = os.sched_getaffinity(0)
    with holder(tmp_path / "cpus", cpu) as other, contextlib.closing(CpuLocks(tmp_path / "cpus")) as locks:
        with pytest.raises(PinningRefused) as caught:
            bind(Where(0, (cpu,)), locks)
        assert caught.value.message == (
            f"CPUs: expected [{cpu}] for this worker alone, got CPU {cpu} is process {other.pid}'s; other CPUs, or "
            "--share-cpus, with which workers take turns"
        )
    assert os.sched_getaffinity(0) == before


def test_binding_is_all_of_it() -> None:
    cpu = max(os.sched_getaffinity(0))
    cpus, policy, others = in_a_process(
        "import json, os, pathlib, subprocess, sys, tempfile\n"
        "from types import SimpleNamespace\n"
        "from colibri.expert_service.cpu_locks import CpuLocks\n"
        "from colibri.expert_service.pinning import bind\n"
        "file = pathlib.Path(tempfile.mkdtemp()) / 'cpus'\n"
        "locks = CpuLocks(file)\n"
        f"bind(SimpleNamespace(numa_node=0, cpus=({cpu},), oversubscribed=False), locks)\n"
        "policies = {line.split()[1] for line in open('/proc/self/numa_maps')}\n"
        "look = 'import sys, pathlib; from colibri.expert_service.cpu_locks import CpuLocks;'\n"
        "look += 'print(list(CpuLocks(pathlib.Path(sys.argv[1])).taken()))'\n"
        "seen = subprocess.run([sys.executable, '-c', look, file], capture_output=True, text=True, check=True)\n"
        "print(json.dumps([sorted(os.sched_getaffinity(0)), sorted(policies), json.loads(seen.stdout)]))\n"
    )
    assert (cpus, policy, others) == ([cpu], ["bind:0"], [cpu])


def test_pages_elsewhere_are_told() -> None:
    assert misplaced({0: 500, -1: 3}, 0) == ""
    assert misplaced({0: 500, 1: 12}, -1) == ""
    assert misplaced({}, 0) == ""
    assert misplaced({0: 490, 1: 12, 3: 10, -1: 5}, 0) == (
        "weights: expected all pages on node 0, got 12 on node 1, 10 on node 3 of 512 sampled"
    )


def test_bandwidth_is_measured_where_it_can_be_had() -> None:
    before = os.sched_getaffinity(0)
    (cpu, *_) = before
    found = measure_read_bandwidth(cpu, 0)
    assert found is not None
    assert found > 1e8
    assert measure_read_bandwidth(4095, 0) is None
    assert measure_read_bandwidth(cpu, 1023) is None
    assert os.sched_getaffinity(0) == before


def test_nothing_asked_for_changes_nothing() -> None:
    before = os.sched_getaffinity(0)
    pin_cpus(())
    bind_memory(-1)
    assert os.sched_getaffinity(0) == before


def test_pages_not_in_memory_are_told_apart() -> None:
    fresh = np.empty(64 << 20, np.uint8)  # so large that it is mapped, not recycled
    fresh[0] = 1
    nodes = read_placement([fresh]).pages_by_node
    assert nodes.get(-1, 0) > 0
    assert nodes_of_pages([]) == {}


def test_a_small_buffer_is_sampled_page_by_page() -> None:
    assert sample_pages([Span(10 * PAGE, 3 * PAGE)], 100) == [10 * PAGE, 11 * PAGE, 12 * PAGE]
    assert sample_pages([], 100) == []
    assert sample_pages([Span(0, 0)], 100) == []


def test_a_sample_is_bounded_and_spread_over_all_buffers() -> None:
    spans = [Span(index << 30, 1000 * PAGE) for index in range(1, 9)]
    pages = sample_pages(spans, 80)
    assert 70 <= len(pages) <= 80
    assert all(page % PAGE == 0 for page in pages)
    per_span = [sum(page >> 30 == index for page in pages) for index in range(1, 9)]
    assert min(per_span) >= 8
    many = [Span(index << 30, PAGE) for index in range(1, 2001)]
    pages = sample_pages(many, 100)
    assert 90 <= len(pages) <= 100
    assert len({page >> 30 for page in pages}) == len(pages)
