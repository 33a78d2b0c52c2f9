"""Which expert moves where: drawn, and always possible."""

from __future__ import annotations

import pytest

from colibri.bench.chaos.injector import choose_move
from colibri.bench.chaos.plan import Action, EventSpec
from colibri.bench.chaos.schedule import Scheduled
from colibri.errors import ColibriError
from colibri.v1 import operator_pb2 as pb


def cluster(**held: list[str]) -> pb.ClusterStatusReply:
    workers = [pb.WorkerInfo(name=name, state="serving", held=experts) for name, experts in held.items()]
    return pb.ClusterStatusReply(workers=workers)


def event(draw: int, **changes: object) -> Scheduled:
    return Scheduled(0, 0.0, "p", EventSpec(Action.MOVE, every_s=1.0, **changes), draw)  # type: ignore[arg-type]


STATUS = cluster(w0=["0:0", "0:1", "1:0"], w1=["0:1", "1:1"], w2=["0:0", "1:0", "1:1"])


def test_a_move_takes_from_a_holder_and_gives_to_another() -> None:
    seen = set()
    for draw in range(200):
        move = choose_move(STATUS, event(draw))
        held = {worker.name: set(worker.held) for worker in STATUS.workers}
        expert = f"{move.layer}:{move.expert}"
        assert expert in held[move.source]
        assert expert not in held[move.to]
        assert choose_move(STATUS, event(draw)) == move
        seen.add((expert, move.to))
    assert len(seen) == 4


def test_what_the_plan_fixes() -> None:
    for draw in range(20):
        move = choose_move(STATUS, event(draw, layer=1, to="w0"))
        assert (move.layer, move.expert, move.to) == (1, 1, "w0")


def test_nothing_to_move() -> None:
    with pytest.raises(ColibriError, match="nothing can be moved"):
        choose_move(cluster(w0=["0:0"], w1=["0:0"]), event(1))
    with pytest.raises(ColibriError, match="nothing can be moved"):
        choose_move(STATUS, event(1, layer=9))
