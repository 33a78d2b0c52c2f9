"""What is noted of a deployment that changes, and whether it is whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from colibri.bench.chaos.operator import whats_missing
from colibri.bench.chaos.timeline import Timeline
from colibri.bench.chaos.watch import Watch
from colibri.errors import WorkerLost
from colibri.v1 import operator_pb2 as pb


def status(epoch: int = 1, change: str = "", **workers: tuple[str, int, str]) -> pb.ClusterStatusReply:
    """workers: name=(state, incarnation, health)."""
    infos = [
        pb.WorkerInfo(name=name, state=state, incarnation=incarnation, health=health)
        for name, (state, incarnation, health) in workers.items()
    ]
    return pb.ClusterStatusReply(epoch=epoch, change=change, workers=infos)


def watched(*answers: pb.ClusterStatusReply | WorkerLost) -> tuple[Watch, list[str]]:
    """After the deployment told each of `answers` once."""
    left, done = list(answers), threading.Event()

    def ask() -> pb.ClusterStatusReply:
        if len(left) == 1:
            done.set()
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, WorkerLost):
            raise answer
        return answer

    timeline = Timeline(time.monotonic)
    watch = Watch(ask, timeline, time.monotonic, poll_s=0.001)
    watch.start()
    assert done.wait(10)
    until(lambda: watch.latest(0.0) is not None)
    watch.stop()
    return watch, [moment.text for moment in timeline.moments()]


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_kill_and_a_new_life() -> None:
    watch, texts = watched(
        status(w0=("serving", 1, "healthy"), w1=("serving", 2, "healthy")),
        status(w0=("waiting", 1, "lost"), w1=("serving", 2, "healthy")),
        WorkerLost("gone"),
        status(w0=("loading", 3, "lost"), w1=("serving", 2, "healthy")),
        status(w0=("serving", 3, "healthy"), w1=("serving", 2, "healthy"), epoch=2),
    )
    assert texts == [
        "w0 waiting (incarnation 1)",
        "no status: gone",
        "w0 loading (incarnation 3)",
        "w0 serving (incarnation 3)",
        "placement epoch 2",
    ]
    assert watch.lives() == 3
    assert watch.reused() == []
    assert watch.missing(0.0) == ""
    assert watch.missing(time.monotonic() + 1) != ""


def test_an_incarnation_that_comes_again_is_told() -> None:
    watch, _ = watched(
        status(w0=("serving", 1, "")), status(w0=("serving", 2, "")), status(w0=("serving", 1, ""))
    )
    assert watch.reused() == ["w0/1"]
    watch, _ = watched(status(w0=("serving", 1, "")), status(w0=("serving", 1, ""), w1=("serving", 1, "")))
    assert watch.reused() == ["w1/1"]


def test_when_a_deployment_is_whole() -> None:
    assert whats_missing(status(w0=("serving", 1, "healthy"), w1=("drained", 2, "lost"))) == ""
    assert "w0 is loading" in whats_missing(status(w0=("loading", 1, "lost")))
    assert "ejected" in whats_missing(status(w0=("serving", 1, "ejected")))
    assert "a change" in whats_missing(status(w0=("serving", 1, "healthy"), change="scale to 4"))
