"""Plans, commands and rescues where experts belong to homes of workers: none ever lies on another home."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.cluster.experts.holders import Holders, copies, holders_of
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.planner.problem import Loads
from colibri.cluster.placing.proposal import placed
from colibri.cluster.placing.rebalance_options import PlacementPolicy
from colibri.cluster.placing.target import next_holders
from colibri.errors import InvalidInput
from colibri.numerics_homes import NumericsHomes, assign_homes, spread_by_home

LAYERS, EXPERTS = 3, 10


def homes_of(gpus: int, cpus: int) -> NumericsHomes:
    """Of w0, w1, ...: GPUs first; who joins is a CPU."""
    homes = assign_homes(EXPERTS, {"cpu": cpus, "gpu": gpus})
    return NumericsHomes(homes, "cpu", {f"w{index}": "gpu" for index in range(gpus)})


def made(gpus: int, cpus: int, replicas: int = 1) -> Desired:
    homes = homes_of(gpus, cpus)
    names = [f"w{index}" for index in range(gpus + cpus)]
    return Desired.of(spread_by_home(LAYERS, names, homes, replicas), replicas, homes=homes)


def check(holders: Holders, homes: NumericsHomes | None) -> None:
    assert homes is not None
    for experts in holders:
        for expert, names in enumerate(experts):
            assert names
            assert all(homes.may_hold(name, expert) for name in names)


def skewed(seed: int) -> Loads:
    rng = np.random.default_rng(seed)
    return tuple(tuple((1.0 / (1 + rng.permutation(EXPERTS)) ** 2).tolist()) for _ in range(LAYERS))


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99), st.data())
def test_no_command_crosses_kinds(
    gpus: int, cpus: int, replicas: int, seed: int, data: st.DataObject
) -> None:
    desired = made(gpus, cpus, min(replicas, gpus, cpus))
    everybody = frozenset(desired.workers)
    for _ in range(4):
        step = data.draw(st.sampled_from(["grow", "drain", "place", "absent"]))
        if step == "grow":
            desired = desired.scale(len(desired.workers) + 1, everybody)
        elif step == "place":
            desired = placed(desired, skewed(seed), PlacementPolicy())
        elif step == "drain":
            worker = data.draw(st.sampled_from(desired.workers))
            homes = desired.homes
            assert homes is not None
            if sum(homes.of(name) == homes.of(worker) for name in desired.workers) > 1:
                desired = desired.drain(worker)
            else:
                with pytest.raises(InvalidInput, match="workers: expected at least one of"):
                    desired.drain(worker)
        else:
            gone = frozenset(data.draw(st.sets(st.sampled_from(desired.workers))))
            check(desired.without(gone), desired.homes)
        check(desired.holders, desired.homes)


def test_a_plan_for_loads_divides_within_a_kind() -> None:
    desired = placed(made(2, 2), skewed(5), PlacementPolicy())
    check(desired.holders, desired.homes)
    assert any(len(names) > 1 for experts in desired.holders for names in experts), "hot experts have copies"


def test_a_kind_that_is_gone_keeps_its_experts() -> None:
    desired = made(2, 2, 2)
    left = desired.without(frozenset({"w0", "w1"}))
    for layer, experts in enumerate(desired.holders):
        for expert, names in enumerate(experts):
            if desired.homes is not None and desired.homes.experts[expert] == "gpu":
                assert left[layer][expert] == names


def test_only_the_same_kind_rescues() -> None:
    desired = made(2, 2)
    current, order = desired.holders, desired.workers
    target = next_holders(current, current, frozenset({"w1", "w2", "w3"}), order, homes=desired.homes)
    check(target, desired.homes)
    assert copies(target).keys() == {"w1", "w2", "w3"}
    nobody = next_holders(current, current, frozenset({"w2", "w3"}), order, homes=desired.homes)
    assert nobody == current, "they wait for a worker of their own home"


def test_a_move_to_another_kind() -> None:
    desired = made(1, 2)
    assert desired.homes is not None
    expert = desired.homes.experts.index("cpu")
    with pytest.raises(
        InvalidInput, match="to: expected a worker of cpu, which the expert belongs to, got w0, of gpu"
    ):
        desired.move((0, expert), "w0", "")
    moved = desired.move((0, expert), "w2", "")
    check(moved.holders, moved.homes)


def test_without_kinds_all_is_as_ever() -> None:
    one = NumericsHomes(("cpu",) * EXPERTS, "cpu")
    names = ["w0", "w1", "w2"]
    plain = Desired.of(spread_by_home(LAYERS, names, one, 2), 2)
    assert holders_of(spread_by_home(LAYERS, names, one, 2)) == plain.holders
    same = replace(plain, homes=one)
    alive = frozenset(names)
    assert same.scale(5, alive).holders == plain.scale(5, alive).holders
    assert (
        placed(same, skewed(3), PlacementPolicy()).holders
        == placed(plain, skewed(3), PlacementPolicy()).holders
    )
