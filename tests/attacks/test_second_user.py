"""What another user of the machine can do to a deployment: ask for answers, where it has no tokens, and no more."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import grpc
import pytest
from google.protobuf.message import Message

from colibri.bench.chaos.operator import Operator
from colibri.deployment.cluster import ClusterOptions
from colibri.security.plane_secret import PlaneSecret
from colibri.transport.host import host_id
from colibri.transport.shared_memory import LAYOUT
from colibri.v1 import expert_pb2, operator_pb2
from tests.support.clusters import answer, deployed
from tests.support.other_user import as_stranger, needs_root, refusal, stranger_locks
from tests.support.raw_http2 import RawHttp2
from tests.support.serving import Serving, serving
from tests.support.tries import Tries
from tests.support.worker_client import worker_process

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED.value[0]
DENIED = grpc.StatusCode.PERMISSION_DENIED.value[0]
EVERYTHING = [expert_pb2.ExpertId(layer=0, expert=expert) for expert in range(8)]
#: Method and message of every call of a worker.
PLANE = {
    "Expert/Handshake": expert_pb2.HandshakeRequest(),
    "Expert/Status": expert_pb2.StatusRequest(experts=True),
    "Expert/Load": expert_pb2.LoadRequest(epoch=2, experts=EVERYTHING),
    "Expert/Retire": expert_pb2.RetireRequest(epochs_below=2, experts=EVERYTHING),
    "Expert/Attach": expert_pb2.AttachRequest(host=host_id(), layout=LAYOUT),
    "Expert/Exchange": None,
    "Faults/SetFaults": None,
}
OPERATOR = {
    "Operator/ClusterStatus": operator_pb2.ClusterStatusRequest(),
    "Operator/Scale": operator_pb2.ScaleRequest(workers=0),
    "Operator/Drain": operator_pb2.DrainRequest(worker="w0"),
    "Operator/Move": operator_pb2.MoveRequest(to="w1"),
    "Operator/Place": operator_pb2.PlaceRequest(),
}
GUESSES = ("", "guess-guess-guess", PlaneSecret.draw().text, "x" * 512)


def statuses(target: str, calls: dict[str, bytes], tokens: tuple[str, ...]) -> dict[str, int | None]:
    """grpc-status of each call with each token, by raw HTTP/2: gRPC does not live on after a fork."""
    found = {}
    for token in tokens:
        with RawHttp2(target) as client:
            numbers = {}
            for method, message in calls.items():
                number = client.open(f"/colibri.v1.{method}", token=token)
                client.message(number, message)
                numbers[method] = number
            client.flush()
            client.until_ended(numbers.values(), 20.0)
            for method, number in numbers.items():
                found[f"{method} {token[:8]}"] = client.streams[number].status
    return found


def encoded(calls: Mapping[str, Message | None]) -> dict[str, bytes]:
    return {
        method: b"" if message is None else message.SerializeToString() for method, message in calls.items()
    }


@pytest.fixture
def public_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files as /tmp is: everybody's."""
    with tempfile.TemporaryDirectory(prefix="colibri-attack-", dir="/tmp") as name:
        Path(name).chmod(0o1777)
        monkeypatch.setattr(tempfile, "tempdir", name)
        yield Path(name)


@needs_root
@pytest.mark.parametrize("transport", ["tcp", "unix"])
def test_the_workers_of_serve(tiny_mixtral: Path, public_folder: Path, transport: str, tries: Tries) -> None:
    calls = encoded(PLANE)
    cluster = ClusterOptions(allow_faults=True)
    with deployed(tiny_mixtral, 2, transport=transport, cluster=cluster) as deployment:
        expected = answer(deployment).ids
        endpoints = list(deployment.directory.current().endpoints.values())
        assert deployment.launcher is not None
        pids = [status.pid for status in deployment.launcher.status()]
        for endpoint in endpoints:
            if transport == "tcp":
                got = as_stranger(partial(statuses, endpoint.target, calls, GUESSES))
                assert set(got.values()) == {UNAUTHENTICATED}, got
                tries("worker's calls by another user", len(got))
            else:
                assert as_stranger(partial(_closed, endpoint.target)) == "PermissionError"
                tries("worker's sockets by another user", 1)
        peeked = as_stranger(lambda: [name for pid in pids for name in peeks(pid)])
        assert peeked == []
        tries("a worker's memory, descriptors and environment by another user", 4 * len(pids))
        opened = as_stranger(lambda: listed(public_folder))
        assert opened == []
        assert answer(deployment).ids == expected
        secret = endpoints[0].security.secret
        assert secret is not None
        seen = as_stranger(lambda: command_lines(pids))
        assert "--worker-secret-fd=" in seen
        assert secret.text not in seen


def _closed(target: str) -> str:
    """The error of a connection."""
    return refusal(lambda: RawHttp2(target))


def peeks(pid: int) -> list[str]:
    """What of a process its own user alone may read, and this one could."""
    folder = Path(f"/proc/{pid}")
    attempts: dict[str, Callable[[], object]] = {
        "environ": (folder / "environ").read_bytes,
        "fd": lambda: os.listdir(folder / "fd"),
        "mem": (folder / "mem").open,
        "fds": lambda: [
            os.open(folder / "fd" / str(fd), os.O_RDWR) for fd in range(64) if _is_there(folder, fd)
        ],
    }
    return [name for name, attempt in attempts.items() if name != "fds" and not refusal(attempt)] + (
        ["fds"] if attempts["fds"]() else []
    )


def _is_there(folder: Path, fd: int) -> bool:
    try:
        os.close(os.open(folder / "fd" / str(fd), os.O_RDWR))
    except OSError:
        return False
    return True


def listed(folder: Path) -> list[str]:
    """Run folders that could be looked into."""
    return [
        path.name for path in folder.iterdir() if path.is_dir() and not refusal(partial(os.listdir, path))
    ]


def command_lines(pids: list[int]) -> str:
    return " ".join(Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace") for pid in pids)


@needs_root
def test_operators_calls_on_loopback(tiny_mixtral: Path, tmp_path: Path, tries: Tries) -> None:
    """Without tokens whoever reaches the port may ask for answers; the deployment is its own user's to change."""
    with serving(tiny_mixtral, tmp_path, "--workers=2") as served, Operator(served.target) as operator:
        before = [(worker.name, worker.pid) for worker in operator.status().workers]
        got = as_stranger(lambda: statuses(served.target, encoded(OPERATOR), ("", "guess-guess-guess")))
        assert set(got.values()) == {DENIED}, got
        tries("operator's calls by another user", len(got))
        assert _is_known(served)
        assert [(worker.name, worker.pid) for worker in operator.status().workers] == before


def _is_known(served: Serving) -> bool:
    """The refusal is in the log, with whose it was."""
    return "got user 65534" in served.err.read_text()


@needs_root
def test_a_worker_started_by_hand(tiny_mixtral: Path, tmp_path: Path, tries: Tries) -> None:
    """Without a secret a worker on loopback takes its own user's calls; on a unix socket the file's mode decides."""
    with worker_process(tiny_mixtral, "127.0.0.1:0", "--allow-faults") as worker:
        got = as_stranger(lambda: statuses(worker.target, encoded(PLANE), ("",)))
        assert set(got.values()) == {DENIED}, got
        tries("worker's calls by another user", len(got))
    tmp_path.chmod(0o755)
    before = os.umask(0)
    try:
        with worker_process(tiny_mixtral, f"unix:{tmp_path}/w.sock") as worker:
            mode = stat.S_IMODE(os.stat(worker.target.removeprefix("unix:")).st_mode)
            assert mode & 0o077 == 0, oct(mode)
            tries("worker's sockets by another user", 1)
    finally:
        os.umask(before)


@needs_root
def test_a_kept_secret(tmp_path: Path, tries: Tries) -> None:
    """Files with it: made for their owner alone, and not read where they are open."""
    with tempfile.TemporaryDirectory(prefix="colibri-attack-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        command = [sys.executable, "-P", "-c", _KEEP, str(folder / "secret")]
        subprocess.run(command, check=True, timeout=60)
        assert as_stranger(lambda: refusal((folder / "secret").read_bytes)) == "PermissionError"
        # A stranger's file in its place is not taken for ours.
        (folder / "secret").unlink()

        def plant() -> None:
            (folder / "secret").write_text("x" * 43)
            (folder / "secret").chmod(0o600)

        as_stranger(plant)
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode != 0
        assert "expected a file of user 0 or root" in done.stderr
        tries("a kept secret by another user", 2)


@needs_root
def test_cpus_that_a_stranger_never_lets_go(tiny_mixtral: Path, tmp_path: Path, tries: Tries) -> None:
    """The file of CPU locks is everybody's: a start waits for a moment, says who, and can pass over it."""
    with tempfile.TemporaryDirectory(prefix="colibri-attack-", dir="/tmp") as name:
        Path(name).chmod(0o1777)
        locks = Path(name) / "cpus"
        locks.touch()
        locks.chmod(0o666)
        command = [
            sys.executable,
            "-P",
            "-m",
            "colibri.cli.main",
            "expert",
            str(tiny_mixtral),
            "--config=none",
        ]
        command += [f"--listen=unix:{tmp_path}/w.sock", f"--cpu-locks={locks}"]
        with stranger_locks(locks) as stranger:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 1
            assert f"process {stranger} of user 65534 is among those who have them" in done.stderr
            assert "--cpu-locks none takes no notice of anybody" in done.stderr
            with worker_process(tiny_mixtral, f"unix:{tmp_path}/w.sock", "--cpu-locks=none") as worker:
                assert worker.process.poll() is None
        # What is no file of locks is told, too.
        locks.unlink()
        makers: tuple[Callable[[], object], ...] = (
            lambda: os.mkfifo(locks, 0o666),
            locks.mkdir,
            lambda: locks.symlink_to("/etc/passwd"),
        )
        for make in makers:
            make()
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 1
            assert "--cpu-locks: expected a " in done.stderr, done.stderr
            locks.rmdir() if locks.is_dir() else locks.unlink()
    tries("locks on CPUs by another user", 4)


_KEEP = """
import sys
from pathlib import Path
from colibri.security.plane_secret import kept_secret
kept_secret(Path(sys.argv[1]), "--worker-secret-file")
"""
