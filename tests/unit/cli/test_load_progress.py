"""Progress of a load: on a terminal, and not elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from colibri.bench.load.arrivals import OpenLoop
from colibri.bench.load.lengths import Fixed
from colibri.bench.load.prompts import RandomIds
from colibri.bench.load.record import Recording
from colibri.bench.load.result import Progress
from colibri.bench.load.runner import LoadRun
from colibri.bench.load.workload import Workload, drawn
from colibri.cli.load_progress import line, watch

BEFORE = Progress(elapsed_s=2.0, sent=10, in_flight=3, completed=7, failed=0, tokens=100)
NOW = Progress(elapsed_s=4.0, sent=14, in_flight=2, completed=11, failed=1, tokens=150)


def test_rates_are_between_two_looks() -> None:
    assert line(BEFORE, NOW, 20) == (
        "   4.0 s  11 of 20 whole, 2 in flight, 1 FAILED  25.0 tokens/s, 2.0 requests/s"
    )
    assert "of 20" not in line(BEFORE, NOW, None)
    assert "FAILED" not in line(BEFORE, BEFORE, None)


class Echo:
    """A target in this process: what is painted does not depend on where tokens come from."""

    async def open(self, timeout_s: float) -> None: ...

    async def send(self, recording: Recording, timeout_s: float) -> None:
        recording.note_sent()
        await asyncio.sleep(0.01)
        recording.note_tokens([1], [2])

    async def close(self) -> None: ...


def run_to_the_end() -> None:
    workload = Workload(RandomIds(9), drawn(Fixed(1), Fixed(1)), seed=0)
    with LoadRun(Echo(), workload, OpenLoop((0.0, 0.1, 0.2))) as run:
        assert len(watch(run, 3, 20.0).records) == 3


def test_painted_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, ours = os.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with os.fdopen(ours, "w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        run_to_the_end()
    painted = b""
    with contextlib.suppress(OSError):  # EIO: all was read, and nobody writes any more
        while piece := os.read(terminal, 1 << 16):
            painted += piece
    os.close(terminal)
    assert b"3 of 3 whole, 0 in flight" in painted


def test_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run_to_the_end()
    assert capsys.readouterr() == ("", "")
