from __future__ import annotations

from dataclasses import replace

import pytest

from colibri.cluster.experts.holders import copies, held_by
from colibri.cluster.placing.commands import Drain
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.planner.problem import Worker
from colibri.errors import InvalidInput
from colibri.placement import spread


def made(workers: int = 3, replicas: int = 1) -> Desired:
    return Desired.of(spread(2, 6, [f"w{i}" for i in range(workers)], replicas), replicas)


def alive(*names: str) -> frozenset[str]:
    return frozenset(names)


def test_drain_and_undo() -> None:
    start = made()
    drained = start.drain("w1")
    assert drained.workers == ("w0", "w2")
    assert drained.drained == ("w1",)
    assert copies(drained.holders) == {"w0": 6, "w2": 6}
    back = drained.undrain("w1")
    assert back.workers == start.workers
    assert back.drained == ()
    assert copies(back.holders) == copies(start.holders)


def test_scale_names_and_order() -> None:
    start = made(2)
    four = start.scale(4, alive("w0", "w1"))
    assert four.workers == ("w0", "w1", "w2", "w3")
    assert four.scale(2, alive(*four.workers)).workers == ("w0", "w1")
    assert four.scale(3, alive("w0", "w2", "w3")).workers == ("w0", "w2", "w3")
    twelve = start.scale(12, alive("w0", "w1"))
    assert twelve.workers[-3:] == ("w9", "w10", "w11")
    assert twelve.scale(12, alive()) == twelve


def test_a_drained_name_is_not_given_away() -> None:
    drained = made(3).drain("w1")
    assert drained.scale(3, alive("w0", "w2")).workers == ("w0", "w2", "w3")


def test_move_swap_add_and_drop() -> None:
    start = made(3)
    assert start.holders[0][0] == ("w0",)
    assert start.move((0, 0), "w2", "w0").holders[0][0] == ("w2",)
    added = start.move((0, 0), "w1", "")
    assert added.holders[0][0] == ("w1", "w0")
    assert added.move((0, 0), "w0", "").holders[0][0] == ("w0", "w1")
    assert added.move((0, 0), "", "w1").holders[0][0] == ("w0",)
    assert added.pinned == {(0, 0)}


def test_what_was_moved_by_hand_stays_there() -> None:
    moved = made(2).move((0, 0), "w1", "w0").move((1, 3), "w0", "")
    four = moved.scale(4, alive("w0", "w1"))
    assert four.holders[0][0] == ("w1",)
    assert set(four.holders[1][3]) == set(moved.holders[1][3])
    gone = four.drain("w1")
    assert gone.holders[0][0] != ("w1",)
    assert len(gone.holders[0][0]) == 1


def test_without_the_absent_only_their_experts_move() -> None:
    start = made(3, 2)
    assert start.without(frozenset()) is start.holders
    assert start.without(alive("w0", "w1", "w2")) is start.holders
    left = start.without(alive("w1"))
    assert not held_by(left, "w1")
    for name in ("w0", "w2"):
        assert held_by(left, name) >= held_by(start.holders, name)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda d: d.drain("w9"), "worker: expected one of w0, w1, w2, got w9"),
        (lambda d: d.drain("w1").drain("w1"), "not drained yet, got w1"),
        (lambda d: d.drain("w1").drain("w2").drain("w0"), "several workers, got w0, the last one"),
        (lambda d: d.undrain("w0"), "worker: expected a drained worker, got w0"),
        (lambda d: d.drain("w2").undrain("w0"), r"a drained worker \(w2\), got w0"),
        (lambda d: d.scale(0, alive()), "workers: expected 1 to 256, got 0"),
        (lambda d: d.scale(257, alive()), "workers: expected 1 to 256, got 257"),
        (lambda d: d.move((2, 0), "w0", ""), "layer: expected 0 to 1, got 2"),
        (lambda d: d.move((0, 6), "w0", ""), "expert: expected 0 to 5, got 6"),
        (lambda d: d.move((0, 0), "", ""), "to: expected"),
        (lambda d: d.move((0, 0), "w7", ""), "to: expected one of w0, w1, w2, got w7"),
        (lambda d: d.move((0, 0), "w1", "w2"), r"from: expected a holder of it \(w0\), got w2"),
        (lambda d: d.move((0, 0), "w0", "w0"), "from: expected another worker than w0"),
        (lambda d: d.move((0, 0), "", "w0"), "from: expected not the last holder, got w0"),
    ],
)
def test_what_cannot_be_is_refused_by_field(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InvalidInput, match=message):
        call(made())


def test_a_host_is_drained_as_a_whole() -> None:
    facts = {f"w{i}": Worker(f"w{i}", f"10.0.0.{i // 2}") for i in range(6)}
    start = replace(Desired.of(spread(2, 8, tuple(facts), 2), 2), facts=facts)
    out = start.drain_host("10.0.0.1")
    assert (out.workers, out.drained) == (("w0", "w1", "w4", "w5"), ("w2", "w3"))
    assert {name for experts in out.holders for names in experts for name in names} == set(out.workers)
    assert Drain("", host="10.0.0.1").apply(start, frozenset(facts)) == out
    assert out.undrain_host("10.0.0.1").workers == start.workers
    with pytest.raises(
        InvalidInput, match=r"host: expected one of 10\.0\.0\.0, 10\.0\.0\.2, got 10\.0\.0\.1"
    ):
        out.drain_host("10.0.0.1")
    with pytest.raises(InvalidInput, match=r"host: expected one of 10\.0\.0\.1, got 10\.0\.0\.0"):
        out.undrain_host("10.0.0.0")
    with pytest.raises(
        InvalidInput, match=r"host: expected one of several hosts with workers, got 10\.0\.0\.2"
    ):
        out.drain_host("10.0.0.0").drain_host("10.0.0.2")
    with pytest.raises(InvalidInput, match="there is none"):
        Desired.of(spread(2, 8, ("w0", "w1")), 1).drain_host("here")
