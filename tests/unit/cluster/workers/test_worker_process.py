"""WorkerProcess with real processes: small Python programs that behave well or badly."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from colibri.cluster.workers.worker_process import Ready, WorkerProcess, describe_end
from colibri.errors import DeadlineExpired, WorkerLost

READY = (
    "import json, os; print(json.dumps(dict(target='unix:/x', incarnation=7, pid=os.getpid())), flush=True)\n"
)
SLEEP = "import time; time.sleep(600)\n"


class Harness:
    def __init__(self) -> None:
        self.logged: list[str] = []
        self.exited = threading.Event()
        self.exit_time = 0.0
        self.processes: list[WorkerProcess] = []

    def start(self, program: str) -> WorkerProcess:
        process = WorkerProcess(
            "w0", 7, [sys.executable, "-c", program], log=self.logged.append, on_exit=self._on_exit
        )
        self.processes.append(process)
        return process

    def _on_exit(self, process: WorkerProcess) -> None:
        self.exit_time = time.monotonic()
        assert process.returncode is not None
        self.exited.set()


@pytest.fixture
def harness() -> Iterator[Harness]:
    harness = Harness()
    yield harness
    for process in harness.processes:
        process.stop(0.0)


def test_ready_line_among_other_output(harness: Harness) -> None:
    process = harness.start("print('hello', flush=True)\n" + READY + SLEEP)
    ready = process.wait_ready(20)
    assert ready == Ready("unix:/x", 7, process.pid)
    assert harness.logged == ["w0: hello"]


def test_ready_line_of_another_incarnation_does_not_count(harness: Harness) -> None:
    process = harness.start(READY.replace("7", "6") + SLEEP)
    with pytest.raises(DeadlineExpired, match="worker w0"):
        process.wait_ready(1)


def test_end_before_ready_tells_what_it_said(harness: Harness) -> None:
    process = harness.start("import sys; sys.exit('no such model')")
    with pytest.raises(
        WorkerLost, match="exited with code 1 before it was ready; it said: no such model"
    ) as caught:
        process.wait_ready(20)
    assert caught.value.peer == "w0"
    assert caught.value.retryable


def test_silence_is_bounded_and_named(harness: Harness) -> None:
    process = harness.start(SLEEP)
    with pytest.raises(DeadlineExpired, match=r"worker w0 .* was not ready within 0\.2 s; .*--start-timeout"):
        process.wait_ready(0.2)


def test_kill_is_noticed_at_once(harness: Harness) -> None:
    process = harness.start(READY + SLEEP)
    process.wait_ready(20)
    killed = time.monotonic()
    os.kill(process.pid, signal.SIGKILL)
    assert harness.exited.wait(5)
    assert harness.exit_time - killed < 1.0
    assert process.returncode == -signal.SIGKILL
    assert process.wait_exit(5)


def test_stop_asks_first(harness: Harness) -> None:
    polite = "import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))\n"
    process = harness.start(polite + READY + SLEEP)
    process.wait_ready(20)
    process.stop(10)
    assert process.returncode == 3


def test_stop_ends_what_does_not_listen(harness: Harness) -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    process = harness.start(deaf + READY + SLEEP)
    process.wait_ready(20)
    process.stop(0.2)
    assert process.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)


def test_a_flood_of_output_does_not_block_the_worker(harness: Harness) -> None:
    short = "import sys; [print('x' * 1000, file=sys.stderr) for _ in range(2000)]\n"
    long = "print('y' * 100000, file=sys.stderr)\n"
    process = harness.start(short + long + READY + SLEEP)
    process.wait_ready(20)
    assert len(harness.logged) >= 2000
    assert max(map(len, harness.logged)) <= 8192 + len("w0: ")


def test_leaves_no_file_descriptor_and_no_thread(harness: Harness) -> None:
    before, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    process = harness.start(READY + SLEEP)
    process.wait_ready(20)
    process.stop(0.0)
    assert set(os.listdir("/proc/self/fd")) <= before
    assert threading.active_count() == threads


@pytest.mark.parametrize(
    "line", ["", "x", "[]", "{}", '{"target": 1, "incarnation": 1, "pid": 1}', "null", "7"]
)
def test_other_lines_are_not_ready_lines(line: str) -> None:
    assert Ready.parse(line) is None


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (None, "still runs"),
        (0, "exited with code 0"),
        (-9, "was killed by SIGKILL"),
        (-63, "was killed by signal 63"),
    ],
)
def test_describe_end(code: int | None, text: str) -> None:
    assert describe_end(code) == text
