"""A log that takes nothing (a full pipe, a full disk, none at all) costs lines and nothing else."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.client import Client
from colibri.client.operator import Operator
from colibri.generation import Tokens
from tests.support.clusters import PROMPT, answer, deployed, eventually, kill
from tests.support.outlets import FullPipe, full_disk
from tests.support.serving import Serving, serving

CLOSED = ("sh", "-c", 'exec "$@" 2>&-', "sh")
OUTLETS = ("full pipe", "left pipe", "full device", "full disk", "closed")


@contextlib.contextmanager
def outlet(kind: str, folder: Path) -> Iterator[int | None]:
    if kind == "full pipe":
        with contextlib.closing(FullPipe()) as pipe:
            yield pipe.end
    elif kind == "left pipe":
        reader, writer = os.pipe()
        os.close(reader)
        yield writer
        os.close(writer)
    elif kind == "full device":
        fd = os.open("/dev/full", os.O_WRONLY)
        yield fd
        os.close(fd)
    elif kind == "full disk":
        try:
            with full_disk(folder / "disk") as fd:
                yield fd
        except PermissionError as error:
            pytest.skip(str(error))
    else:
        yield None


def ask(target: str) -> list[int]:
    """Receipts of a greedy answer."""
    with contextlib.closing(Client(target, timeout_s=60)) as client:
        events = client.generate(PROMPT, max_tokens=16, temperature=0, ignore_eos=True)
        return [receipt for event in events if isinstance(event, Tokens) for receipt in event.receipts]


def kill_one_and_wait(serve: Serving, operator: Operator, deaths: int) -> None:
    worker = operator.status().workers[0]
    kill(worker.pid)
    eventually(
        lambda: (
            operator.status().workers[0].deaths == deaths
            and all(each.state == "serving" for each in operator.status().workers)
        ),
        60,
        "the worker is back",
    )


@pytest.mark.parametrize("kind", OUTLETS)
def test_serves(tiny_mixtral: Path, tmp_path: Path, kind: str) -> None:
    with deployed(tiny_mixtral, 0) as oracle:
        expected = answer(oracle).receipts
    through = CLOSED if kind == "closed" else ()
    with (
        outlet(kind, tmp_path) as stderr,
        serving(tiny_mixtral, tmp_path, "--replicas=2", stderr=stderr, through=through) as serve,
        contextlib.closing(Operator(serve.target)) as operator,
    ):
        kill_one_and_wait(serve, operator, deaths=1)
        assert ask(serve.target) == expected
        dropped = operator.status().log_lines_dropped
        assert (dropped > 0) == (kind in ("left pipe", "full device", "full disk"))
        assert serve.end(signal.SIGTERM) == 0


def test_a_late_reader(tiny_mixtral: Path, tmp_path: Path) -> None:
    """The server's own output may wait for its reader, too: the ready line goes to the same pipe."""
    with (
        contextlib.closing(FullPipe()) as pipe,
        serving(tiny_mixtral, tmp_path, "--replicas=2", stderr=pipe.end) as serve,
    ):
        assert ask(serve.target)
        thread = pipe.drain()
        eventually(lambda: "serving" in pipe.text, 30, "the log comes when it is read")
        assert "missing" not in pipe.text, "what fits into the queue is not dropped"
        assert serve.end(signal.SIGTERM) == 0
        thread.join(10)
        assert "SIGTERM: no more requests" in pipe.text
