"""Signals reach the life of a worker that was meant, and no other process."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from colibri.bench.chaos.processes import send
from colibri.errors import ColibriError
from colibri.v1 import operator_pb2 as pb


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    program = "import time; print('up', flush=True); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-c", program, "--incarnation=7"], stdout=subprocess.PIPE
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == b"up\n"
        yield started
        started.kill()


def worker(pid: int, incarnation: int) -> pb.WorkerInfo:
    return pb.WorkerInfo(name="w1", pid=pid, incarnation=incarnation)


def test_the_right_one_gets_it(process: subprocess.Popen[bytes]) -> None:
    send(worker(process.pid, 7), signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL


def test_another_process_of_that_pid_does_not(process: subprocess.Popen[bytes]) -> None:
    for incarnation in (1, 70):
        with pytest.raises(ColibriError, match=rf"w1, incarnation {incarnation}: process \d+ is another one"):
            send(worker(process.pid, incarnation), signal.SIGKILL)
    assert process.poll() is None


def test_one_that_has_ended_is_told(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(10)
    with pytest.raises(ColibriError, match="no process"):
        send(worker(process.pid, 7), signal.SIGKILL)
    with pytest.raises(ColibriError, match="no process"):
        send(worker(0, 7), signal.SIGKILL)
