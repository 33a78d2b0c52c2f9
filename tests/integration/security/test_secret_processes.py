"""The secret in real processes: begun, killed, added, begun by hand; neither command line nor environment tells it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from colibri.cluster.placing.commands import Scale
from colibri.cluster.workers.expert_calls import ask_status, retire_experts
from colibri.deployment.cluster import ClusterOptions
from colibri.errors import Unauthenticated
from colibri.placement import WorkerEndpoint
from colibri.security.channel import ChannelSecurity
from colibri.security.plane_secret import PlaneSecret
from tests.support.clusters import answer, deployed, eventually, statuses
from tests.support.worker_client import WAIT_S, worker_process


def told(pid: int) -> str:
    """What other processes may see of one."""
    folder = Path(f"/proc/{pid}")
    files = (folder / "cmdline", folder / "environ", Path(f"/proc/{os.getpid()}/cmdline"))
    return "".join(file.read_bytes().decode(errors="replace") for file in files)


def refused(endpoint: WorkerEndpoint, shown: ChannelSecurity) -> bool:
    stranger = WorkerEndpoint(endpoint.name, endpoint.incarnation, endpoint.target, shown)
    with pytest.raises(Unauthenticated):
        ask_status(stranger.target, "w", WAIT_S, security=shown)
    with pytest.raises(Unauthenticated):
        retire_experts(stranger, 1 << 40, [(0, 0)], WAIT_S)
    return True


@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_workers_of_all_lives_demand_it(tiny_mixtral: Path, transport: str) -> None:
    secret = PlaneSecret.draw()
    log: list[str] = []
    with deployed(
        tiny_mixtral, 2, transport=transport, cluster=ClusterOptions(secret=secret), log=log.append
    ) as deployment:
        expected = answer(deployment)
        first = {status.name: status.pid for status in statuses(deployment)}
        os.kill(first["w0"], signal.SIGKILL)
        assert deployment.manager is not None
        list(deployment.manager.submit(Scale(3), 60.0).steps(1.0))
        eventually(
            lambda: (
                len(deployment.directory.current().endpoints) == 3
                and all(status.pid != first["w0"] for status in statuses(deployment))
            ),
            60,
            "three workers, one of them in its second life",
        )
        for endpoint in deployment.directory.current().endpoints.values():
            assert endpoint.security.secret == secret
            assert refused(endpoint, ChannelSecurity())
            assert refused(endpoint, ChannelSecurity(secret=PlaneSecret.draw()))
        for status in statuses(deployment):
            assert secret.text not in told(status.pid)
            assert secret.text not in "".join(links(status.pid))
        assert answer(deployment).ids == expected.ids
    assert secret.text not in "\n".join(log)


def links(pid: int) -> list[str]:
    """Of a process's descriptors; one may be closed at any moment."""
    found = []
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(path))
    return found


def test_each_deployment_has_its_own(tiny_mixtral: Path) -> None:
    with deployed(tiny_mixtral, 1) as one, deployed(tiny_mixtral, 1) as other:
        (first,) = one.directory.current().endpoints.values()
        (second,) = other.directory.current().endpoints.values()
        assert first.security.secret != second.security.secret
        assert refused(first, second.security)


def test_started_by_hand(tiny_mixtral: Path, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(PlaneSecret.draw().text)
    path.chmod(0o600)
    with worker_process(tiny_mixtral, "127.0.0.1:0", f"--worker-secret-file={path}") as worker:
        router = [
            sys.executable,
            "-P",
            "-m",
            "colibri.cli.main",
            "router",
            str(tiny_mixtral),
            "--config=none",
        ]
        router += [f"--expert={worker.target}", "--listen=127.0.0.1:0", "--compute-mode=fp32", "--json"]
        done = subprocess.run(router, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert (
            "expected the secret of this worker's deployment (--worker-secret-file), got none" in done.stderr
        )
        process = subprocess.Popen(
            [*router, f"--worker-secret-file={path}"], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            assert '"workers"' in process.stdout.readline()
        finally:
            process.terminate()
            process.wait(30)
            if process.stdout is not None:
                process.stdout.close()
