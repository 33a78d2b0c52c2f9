"""A log that takes nothing, under kills of workers with users: against a log that is a file, in the same run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.table import Line, Outcome
from colibri.client import Client
from colibri.client.operator import Operator
from colibri.errors import ColibriError
from colibri.generation import Tokens
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from tests.support.outlets import FullPipe, full_disk

SHAPE = RandomMixtral(hidden=64, ffn=64, layers=2, heads=4, kv_heads=2, vocab=300)
USERS, KILLS, TOKENS = 4, 4, 48
BACK_S, END_S = 120.0, 40.0


@dataclass(slots=True)
class Arm:
    """back_s: from each kill until all workers serve; end_s: from SIGTERM to the end, None: killed."""

    answers: int = 0
    wrong: int = 0
    failed: list[str] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    end_s: float | None = None
    dropped: int = 0

    def text(self) -> str:
        back = f"{max(self.back_s):.1f} s" if len(self.back_s) == KILLS else "NOT BACK"
        end = "NOT ENDED" if self.end_s is None else f"{self.end_s:.1f} s"
        return (
            f"{self.answers} answers, {len(self.failed)} failed, {self.wrong} wrong, workers back within {back}, "
            f"SIGTERM {end}, {self.dropped} lines counted as missing"
        )

    @property
    def whole(self) -> bool:
        return not self.failed and not self.wrong and len(self.back_s) == KILLS and self.end_s is not None


def measure() -> Outcome:
    """Longest end and return: three times the control's, and 5 s for what else the machine does."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = random_mixtral(folder / "model", SHAPE)
        arms: dict[str, Arm] = {}
        skipped: list[str] = []
        for kind in ("file", "full pipe", "full disk", "closed"):
            try:
                with _outlet(kind, folder) as stderr:
                    arms[kind] = _run(model, stderr, closed=kind == "closed")
            except PermissionError as error:
                skipped.append(f"{kind}: {error}")
    control = arms.pop("file")
    met = control.whole and bool(arms)
    for kind, arm in arms.items():
        met = met and arm.whole and (arm.dropped > 0) == (kind == "full disk")
        met = met and (arm.end_s or 0.0) <= 3 * (control.end_s or 0.0) + 5
        met = met and max(arm.back_s, default=0.0) <= 3 * max(control.back_s, default=0.0) + 5
    return Outcome(
        "; ".join([*(f"{kind}: {arm.text()}" for kind, arm in arms.items()), *skipped]),
        met,
        f"a file: {control.text()}",
        {kind: arm.failed[:5] for kind, arm in arms.items()},
    )


@contextlib.contextmanager
def _outlet(kind: str, folder: Path) -> Iterator[int]:
    if kind == "full pipe":
        with contextlib.closing(FullPipe()) as pipe:
            yield pipe.end
    elif kind == "full disk":
        with full_disk(folder / "disk") as fd:
            yield fd
    else:
        with (folder / f"{kind}.log").open("wb") as file:
            yield file.fileno()


def _run(model: Path, stderr: int, *, closed: bool) -> Arm:
    arm = Arm()
    command = [
        sys.executable,
        "-m",
        "colibri.cli.main",
        "serve",
        str(model),
        "--listen=127.0.0.1:0",
        "--json",
    ]
    command += ["--replicas=2", "--share-cpus", "--config=none"]
    through = ["sh", "-c", 'exec "$@" 2>&-', "sh"] if closed else []
    process = subprocess.Popen([*through, *command], stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        if process.stdout is None:
            raise RuntimeError("the pipe was asked for")
        target = json.loads(process.stdout.readline())["target"]
        _use(target, arm)
        begun = time.monotonic()
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
            arm.end_s = time.monotonic() - begun
    finally:
        process.kill()
        process.wait(END_S)
    return arm


def _use(target: str, arm: Arm) -> None:
    expected = _ask(target)
    over, lock = threading.Event(), threading.Lock()

    def user() -> None:
        while not over.is_set():
            try:
                receipts = _ask(target)
            except ColibriError as error:
                with lock:
                    arm.failed.append(error.message)
                continue
            with lock:
                arm.answers += 1
                arm.wrong += receipts != expected

    threads = [threading.Thread(target=user, daemon=True) for _ in range(USERS)]
    for thread in threads:
        thread.start()
    with contextlib.closing(Operator(target)) as operator:
        for kill in range(KILLS):
            worker = operator.status(timeout_s=BACK_S).workers[kill % 2]
            os.kill(worker.pid, signal.SIGKILL)
            begun = time.monotonic()
            while time.monotonic() - begun < BACK_S:
                now = operator.status(timeout_s=BACK_S).workers
                if (
                    all(each.state == "serving" for each in now)
                    and sum(each.deaths for each in now) == kill + 1
                ):
                    arm.back_s.append(time.monotonic() - begun)
                    break
                time.sleep(0.05)
        over.set()
        for thread in threads:
            thread.join(BACK_S)
        arm.dropped = operator.status(timeout_s=BACK_S).log_lines_dropped


def _ask(target: str) -> list[int]:
    """Receipts of a greedy answer."""
    with contextlib.closing(Client(target, timeout_s=BACK_S)) as client:
        events = client.generate([1, 5, 9, 20], max_tokens=TOKENS, temperature=0, ignore_eos=True)
        return [receipt for event in events if isinstance(event, Tokens) for receipt in event.receipts]


def lines() -> list[Line]:
    return [
        Line(
            "outputs",
            "the log to a full pipe, a full disk, a closed descriptor, under kills of workers, 4 users",
            "as to a file: 0 failed, 0 wrong, workers back and SIGTERM within 3x and 5 s",
            measure,
        )
    ]
