"""Where real worker processes are: what the kernel, Status and `colibri status` say agrees; what is refused, and how.

Workers of these tests take notice of one another's CPUs, by a file of the test's own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from colibri.cluster.machine.cpu_list import format_cpu_list, parse_cpu_list
from colibri.cluster.machine.topology import discover
from colibri.expert_service.cpu_locks import VARIABLE
from tests.support.machine_trees import MachineTree
from tests.support.serving import serving
from tests.support.worker_client import WorkerClient, limits_of, worker_process

CORES = sum(len(node.cores) for node in discover().nodes)
#: Two CPUs of cores that differ.
pytestmark = pytest.mark.skipif(CORES < 2, reason=f"needs two cores, this machine has {CORES}")
COLIBRI = [sys.executable, "-P", "-m", "colibri.cli.main"]
AUTO = ("--numa-node=auto", "--cpu-threads=1")
#: `colibri` on a machine whose sysfs is the first argument; the kernel is this machine's.
ELSEWHERE = (
    "import runpy, sys\n"
    "from pathlib import Path\n"
    "import colibri.deployment.expert_place as module\n"
    "from colibri.cluster.machine.topology import Roots\n"
    "root = Path(sys.argv.pop(1))\n"
    "module.Roots = lambda: Roots(root / 'sys', root / 'proc')\n"
    "runpy.run_module('colibri.cli.main', run_name='__main__')\n"
)


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "cpus"
    monkeypatch.setenv(VARIABLE, str(file))
    return file


def of_status(pid: int, field: str) -> list[tuple[int, ...]]:
    """A list in the status of every thread (man 5 proc)."""
    found = []
    for task in (Path("/proc") / str(pid) / "task").iterdir():
        try:
            lines = (task / "status").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            continue  # a thread that has just ended
        found.append(parse_cpu_list(next(line for line in lines if line.startswith(f"{field}:")).split()[1]))
    return found


def numa_maps(pid: int) -> tuple[set[str], dict[int, int]]:
    """Policies of the mappings that hold pages of the process's own, and those pages by node. OpenBLAS sets a policy
    for a buffer that nobody uses; pages from before the binding may lie anywhere."""
    policies, pages = set(), dict[int, int]()
    for line in Path(f"/proc/{pid}/numa_maps").read_text().splitlines():
        if "anon=" in line:
            policies.add(line.split()[1])
            for node, count in re.findall(r"\bN(\d+)=(\d+)", line):
                pages[int(node)] = pages.get(int(node), 0) + int(count)
    return policies, pages


def refused(command: list[str], *arguments: str) -> str:
    run = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 1, run.stdout + run.stderr
    assert run.stdout == ""
    return run.stderr.strip()


@contextmanager
def loaded(model: Path, folder: Path, *flags: str) -> Iterator[tuple[int, WorkerClient]]:
    """A worker's process id, and a client of it; it holds all experts."""
    with worker_process(model, f"unix:{folder}/{time.monotonic_ns()}", *flags) as worker:
        client = WorkerClient(worker.target, limits_of(model, "fp32"))
        try:
            client.load()
            yield worker.pid, client
        finally:
            client.close()


def test_the_kernel_and_status_agree(tiny_mixtral: Path, tmp_path: Path) -> None:
    with loaded(tiny_mixtral, tmp_path, *AUTO) as (pid, client):
        status = client.status()
        allowed = of_status(pid, "Cpus_allowed_list")
        assert set(allowed) == {tuple(status.cpus_allowed)}
        assert len(allowed) > 1
        node = status.numa_node
        home = discover().node(node)
        assert home is not None
        assert set(status.cpus_allowed) <= set(home.cpus)
        assert (status.compute_threads, status.oversubscribed, status.crossing) == (1, False, "")
        policies, pages = numa_maps(pid)
        assert policies == {f"bind:{node}"}
        assert set(status.weight_pages_by_node) == {node}
        assert pages[node] * os.sysconf("SC_PAGE_SIZE") > status.weight_bytes


def test_workers_started_by_hand_find_cores_of_their_own(tiny_mixtral: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        pids, seen = [], set[int]()
        for _ in range(CORES):
            pid, client = stack.enter_context(loaded(tiny_mixtral, tmp_path, *AUTO))
            cpus = set(client.status().cpus_allowed)
            assert not seen & cpus
            seen |= cpus
            pids.append(pid)
        expert = [*COLIBRI, "expert", str(tiny_mixtral), "--listen=127.0.0.1:0"]
        begun = time.monotonic()
        text = refused(expert, *AUTO)
        assert time.monotonic() - begun < 60
        assert (
            "colibri expert: CPUs: expected a core of their own for 1 worker (1 CPU threads asked for) on "
            in text
        )
        assert f"got 0 free cores of {CORES}" in text or len(discover().nodes) > 1
        assert all(str(pid) in text for pid in pids) or len(discover().nodes) > 1
        cpu = min(seen)
        text = refused(expert, f"--cpus={cpu}")
        assert f"CPUs: expected [{cpu}] for this worker alone, got CPU {cpu} is process " in text
        _, client = stack.enter_context(loaded(tiny_mixtral, tmp_path, *AUTO, "--share-cpus"))
        assert client.status().oversubscribed


def test_a_killed_workers_cores_are_free_at_once(tiny_mixtral: Path, tmp_path: Path) -> None:
    flags = ("--numa-node=auto", "--cpu-threads=auto")
    with loaded(tiny_mixtral, tmp_path, *flags) as (pid, client):
        before = list(client.status().cpus_allowed)
        os.kill(pid, signal.SIGKILL)
        with loaded(tiny_mixtral, tmp_path, *flags) as (_, again):
            assert list(again.status().cpus_allowed) == before


def test_the_policy_is_set_before_the_mode_is_looked_up(tiny_mixtral: Path, tmp_path: Path) -> None:
    """Without --compute-mode the checkpoint is read first, which brings NumPy, its threads and its memory."""
    process = subprocess.Popen(
        [*COLIBRI, "expert", str(tiny_mixtral), "--json", f"--listen=unix:{tmp_path}/w.sock", *AUTO],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        pid = json.loads(process.stdout.readline())["pid"]
        assert len(set(of_status(pid, "Cpus_allowed_list"))) == 1
        policies, _ = numa_maps(pid)
        assert len(policies) == 1
        assert policies.pop().startswith("bind:")
    finally:
        process.kill()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


# What is refused


@pytest.fixture
def elsewhere(tmp_path: Path) -> list[str]:
    """`colibri expert` where CPU 0 is of node 1 and CPU 1 of node 0, and node 1 has memory; not so for the kernel."""
    MachineTree(tmp_path / "machine").nodes("1", "0", memory_kb=1 << 20).allowed("0-1", "0-1")
    return [sys.executable, "-P", "-c", ELSEWHERE, str(tmp_path / "machine"), "expert", "--json"]


def test_a_node_that_the_machine_has_not(tiny_mixtral: Path) -> None:
    known = format_cpu_list(node.id for node in discover().nodes)
    expected = f"colibri expert: --numa-node: expected one of this machine's nodes ({known}), got 999"
    assert refused([*COLIBRI, "expert", str(tiny_mixtral)], "--numa-node=999") == expected


@pytest.mark.skipif(Path("/sys/devices/system/node/node1").exists(), reason="this machine has a node 1")
def test_a_node_that_the_kernel_refuses(tiny_mixtral: Path, elsewhere: list[str]) -> None:
    expected = "numa_node: expected a node whose memory this process may use, got 1 (Invalid argument)"
    assert refused([*elsewhere, str(tiny_mixtral)], "--numa-node=1") == f"colibri expert: {expected}"


def test_cpus_and_memory_on_different_nodes(tiny_mixtral: Path, elsewhere: list[str], tmp_path: Path) -> None:
    flags = ("--cpus=0", "--numa-node=0")
    text = refused([*elsewhere, str(tiny_mixtral)], *flags)
    assert re.fullmatch(
        r"colibri expert: worker: expected CPUs, memory and GPU on one NUMA node, got CPUs 0 on node 1, memory on "
        r"node 0: measured, CPU 0 reads \d+\.\d GB/s of it, estimated at 2\.1 times the local latency \(distance 21, "
        r"local 10\); --allow-cross-node starts it all the same",
        text,
    )
    listen = f"unix:{tmp_path}/w.sock"
    process = subprocess.Popen(
        [
            *elsewhere,
            str(tiny_mixtral),
            f"--listen={listen}",
            "--compute-mode=fp32",
            *flags,
            "--allow-cross-node",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        client = WorkerClient(
            json.loads(process.stdout.readline())["target"], limits_of(tiny_mixtral, "fp32")
        )
        status = client.status()
        client.close()
        assert status.crossing.startswith("CPUs 0 on node 1, memory on node 0: measured, CPU 0 reads ")
        assert f"w0: CROSSES NUMA NODES: {status.crossing}" in process.stderr.readline()
    finally:
        process.terminate()
        process.communicate(timeout=30)


# Deployments


def operator(server: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*COLIBRI, *words, f"--target={server}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_more_workers_than_cores_are_refused(tiny_mixtral: Path) -> None:
    many = CORES + 2
    text = refused([*COLIBRI, "serve", str(tiny_mixtral), "--listen=127.0.0.1:0"], f"--workers={many}")
    beginning = (
        rf"colibri serve: CPUs: expected a core of their own for (\d+ of )?{many} workers on node \d+, got"
    )
    assert re.match(beginning, text)
    assert text.endswith(
        "; fewer workers, fewer --cpu-threads, or --share-cpus, with which workers take turns"
    )


def test_a_second_deployment_finds_no_core(tiny_mixtral: Path, tmp_path: Path) -> None:
    with serving(tiny_mixtral, tmp_path, "--workers=1", share=False) as first:
        (worker,) = first.workers()
        text = refused([*COLIBRI, "serve", str(tiny_mixtral), "--listen=127.0.0.1:0"], f"--workers={CORES}")
        assert f"(process {worker})" in text
        first.end(signal.SIGKILL)
        # Its workers end with it, a moment later.
        with serving(tiny_mixtral, tmp_path, f"--workers={min(CORES, 4)}", share=False) as second:
            assert second.end(signal.SIGTERM) == 0


def test_status_tells_where_workers_are_and_who_joins_stays_apart(tiny_mixtral: Path, tmp_path: Path) -> None:
    flags = ("--workers=1", "--cpu-threads=1", "--numa-node=auto")
    with serving(tiny_mixtral, tmp_path, *flags, share=False) as server:
        added = operator(server.target, "scale", "2")
        assert added.returncode == 0, added.stderr
        reply = json.loads(operator(server.target, "status", "--json").stdout)
        workers = reply["workers"]
        assert [worker["name"] for worker in workers] == ["w0", "w1"]
        assert not set(workers[0]["cpus"]) & set(workers[1]["cpus"])
        for worker in workers:
            assert set(of_status(worker["pid"], "Cpus_allowed_list")) == {tuple(worker["cpus"])}
            policies, pages = numa_maps(worker["pid"])
            assert policies == {f"bind:{worker['numa_node']}"}
            assert [item["node"] for item in worker["weight_pages"]] == [worker["numa_node"]]
            assert pages[worker["numa_node"]] > 0
            assert sum(item["pages"] for item in worker["weight_pages"]) > 0
            assert (worker["oversubscribed"], worker["crossing"], worker["compute_threads"]) == (False, "", 1)
        table = operator(server.target, "status").stdout
        assert re.search(rf"\bw1 .* {workers[1]['cpus'][0]} +{workers[1]['numa_node']} ", table)

        beyond = operator(server.target, "scale", str(CORES + 1))
        assert beyond.returncode == 1
        assert "CPUs: expected a core of their own for " in beyond.stderr
        assert "--share-cpus" in beyond.stderr
        assert len(json.loads(operator(server.target, "status", "--json").stdout)["workers"]) == 2
        assert server.end(signal.SIGTERM) == 0
