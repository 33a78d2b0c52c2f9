"""What is left on a host, on made-up and on real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from colibri.cluster.ray.leftovers import Leftovers, end, look, main


def host(root: Path, commands: dict[int, str], environ: bytes = b"") -> tuple[Path, Path, Path]:
    for pid, command in commands.items():
        folder = root / "proc" / str(pid)
        folder.mkdir(parents=True)
        (folder / "cmdline").write_bytes(command.replace(" ", "\0").encode())
        (folder / "environ").write_bytes(environ)
    for name in ("proc", "tmp", "shm"):
        (root / name).mkdir(exist_ok=True)
    return root / "proc", root / "tmp", root / "shm"


def test_a_host_as_it_was(tmp_path: Path) -> None:
    found = look(*host(tmp_path, {9: "/usr/sbin/sshd -D", 10: "python -m colibri.cli.main serve /m"}))
    assert not found
    assert found.describe() == "nothing"


@pytest.mark.parametrize(
    "command",
    [
        "/venv/ray/core/src/ray/raylet/raylet --raylet_socket_name=x",
        "/venv/ray/core/src/ray/gcs/gcs_server --log_dir=x",
        "ray::DashboardAgent",
        "ray::WorkerActor.wait_end",
        "python -u /venv/ray/_private/log_monitor.py --session-dir=x",
        "python -u /venv/ray/autoscaler/_private/monitor.py",
        "python /venv/ray/dashboard/dashboard.py --host=127.0.0.1",
        "python -m ray.util.client.server --address=x",
        "python /venv/ray/_private/workers/default_worker.py",
    ],
)
def test_rays_processes_are_known(tmp_path: Path, command: str) -> None:
    found = look(*host(tmp_path, {9: command}))
    assert found.processes == (f"9 {command}",)
    assert "1 processes: 9" in found.describe()


def test_ours_count_where_ray_started_them(tmp_path: Path) -> None:
    command = "python -P -m colibri.cli.main expert /m --name=w0"
    assert look(*host(tmp_path / "a", {9: command}, b"A=1\0RAY_RAYLET_PID=7\0")).processes == (
        f"9 {command}",
    )
    assert not look(*host(tmp_path / "b", {9: command}, b"A=1\0"))


def test_sockets_and_shared_memory(tmp_path: Path) -> None:
    proc, temporary, shared = host(tmp_path, {})
    sockets = temporary / "ray/session_1/sockets"
    sockets.mkdir(parents=True)
    (sockets / "raylet").touch()
    (shared / "plasmaXY").touch()
    (shared / "colibri-cpus").touch()
    found = look(proc, temporary, shared)
    assert found.sockets == (str(sockets / "raylet"),)
    assert found.shared_memory == (str(shared / "plasmaXY"),)
    end(proc, temporary, shared)
    assert not look(proc, temporary, shared)
    assert (shared / "colibri-cpus").exists(), "the lock file of a host's CPU locks is everybody's"


def test_what_runs_is_ended(tmp_path: Path) -> None:
    """A process that does not mind SIGTERM, as /proc shows it."""
    script = (
        "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "ray::Test"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        proc, temporary, shared = host(tmp_path, {})
        (proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
        assert look(proc, temporary, shared).processes[0].startswith(f"{process.pid} ")
        end(proc, temporary, shared)
        assert process.wait(5) == -9
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_as_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    found = Leftovers(**{name: tuple(value) for name, value in json.loads(capsys.readouterr().out).items()})
    assert not any(line.startswith(f"{os.getpid()} ") for line in found.processes)
