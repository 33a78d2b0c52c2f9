"""Plans of changes: whatever dies and whatever is wanted, no step of a change leaves an expert that somebody held
without a living worker that has it loaded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.cluster.experts.holders import as_placement, held_by, holders_of, lost_experts
from colibri.cluster.placing.change import Change, plan_change
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.target import next_holders
from colibri.errors import InvalidInput
from colibri.placement import Placement, spread

LAYERS, EXPERTS = 2, 5


def check_every_step(change: Change, alive: frozenset[str]) -> None:
    """Carries it out on made-up workers, one expert at a time."""
    before, after = holders_of(change.old), holders_of(change.new)
    loaded = {name: set(held_by(before, name)) for name in alive}
    reachable = {expert for held in loaded.values() for expert in held}
    routed = before

    def check() -> None:
        for layer, expert in reachable:
            serving = [n for n in routed[layer][expert] if n in alive and (layer, expert) in loaded[n]]
            assert serving, f"expert {layer}:{expert} has no loaded holder"

    for name, experts in change.loads.items():
        assert name in alive
        for expert in experts:
            assert expert not in loaded[name]
            loaded[name].add(expert)
            check()
    routed = after
    check()
    for name, experts in change.unloads.items():
        for expert in experts:
            loaded.get(name, set()).discard(expert)
            check()
    for name in alive:
        assert loaded[name] == held_by(after, name)


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_no_step_leaves_an_expert_without_a_loaded_holder(data: st.DataObject) -> None:
    """Random commands, deaths, returns and long absences, each followed by the change that they call for."""
    workers = data.draw(st.integers(1, 4))
    replicas = data.draw(st.integers(1, min(2, workers)))
    placement = spread(LAYERS, EXPERTS, [f"w{i}" for i in range(workers)], replicas)
    desired = Desired.of(placement, replicas)
    alive = frozenset(placement.workers)
    absent: frozenset[str] = frozenset()
    for _ in range(data.draw(st.integers(1, 6))):
        event = data.draw(st.sampled_from(["die", "return", "scale", "drain", "undo", "move", "absent"]))
        try:
            if event == "die":
                alive -= {data.draw(st.sampled_from(sorted(alive) or ["w0"]))}
            elif event == "return":
                alive |= frozenset(desired.workers)
                absent = frozenset()
            elif event == "absent":
                absent = frozenset(desired.workers) - alive
            elif event == "scale":
                desired = desired.scale(data.draw(st.integers(1, 5)), alive)
                alive |= frozenset(desired.workers) - frozenset(placement.workers)
            elif event == "drain":
                desired = desired.drain(data.draw(st.sampled_from(desired.workers)))
            elif event == "undo":
                desired = desired.undrain(data.draw(st.sampled_from(desired.drained or ("w0",))))
            else:
                expert = (data.draw(st.integers(0, LAYERS - 1)), data.draw(st.integers(0, EXPERTS - 1)))
                desired = desired.move(expert, data.draw(st.sampled_from(desired.workers)), "")
        except InvalidInput:
            continue
        wanted = desired.without(absent)
        order = (*placement.workers, *(name for name in desired.workers if name not in placement.workers))
        target = next_holders(wanted, holders_of(placement), alive, order)
        new = as_placement(target, order, placement.epoch + 1)
        change = plan_change(placement, new, alive)
        check_every_step(change, alive)
        if alive:
            assert lost_experts(target, alive) == []
        if set(desired.workers) <= alive:
            assert target == wanted == desired.holders
        assert next_holders(wanted, target, alive, order) == target
        placement = new
        alive = frozenset(name for name in alive if name in desired.workers)


def names_of(target: tuple[tuple[tuple[str, ...], ...], ...]) -> list[list[str]]:
    return [["+".join(names) for names in experts] for experts in target]


def test_a_dead_replica_changes_nothing() -> None:
    placement = spread(2, 4, ["w0", "w1", "w2"], 2)
    now = holders_of(placement)
    assert next_holders(now, now, frozenset({"w0", "w2"}), placement.workers) == now


def test_survivors_share_what_a_sole_holder_held_and_it_goes_back() -> None:
    placement = spread(1, 6, ["w0", "w1", "w2"])
    now = holders_of(placement)
    rescue = next_holders(now, now, frozenset({"w0", "w2"}), placement.workers)
    assert names_of(rescue) == [["w0", "w0", "w2", "w0", "w2", "w2"]]
    again = next_holders(now, rescue, frozenset({"w2"}), placement.workers)
    assert {name for names in again[0] for name in names} == {"w2"}
    assert next_holders(now, again, frozenset(placement.workers), placement.workers) == now


def test_who_hangs_is_given_nothing_and_keeps_what_it_has() -> None:
    placement = spread(1, 6, ["w0", "w1", "w2"])
    now = holders_of(placement)
    alive = frozenset({"w0", "w2"})
    rescue = next_holders(now, now, alive, placement.workers, able=frozenset({"w0"}))
    assert names_of(rescue) == [["w0", "w0", "w2", "w0", "w0", "w2"]]
    assert next_holders(now, now, alive, placement.workers, able=frozenset()) == now


def test_after_two_deaths_one_return_keeps_the_second_copy() -> None:
    """Two replicas, both dead: w0 takes over; when w1 is back, w0's copy stands in for w2's."""
    wanted = ((("w1", "w2"),),)
    order = ("w0", "w1", "w2")
    rescue = next_holders(wanted, wanted, frozenset({"w0"}), order)
    assert rescue == ((("w0",),),)
    half = next_holders(wanted, rescue, frozenset({"w0", "w1"}), order)
    assert half == ((("w1", "w0"),),)
    assert next_holders(wanted, half, frozenset(order), order) == wanted


def test_nobody_alive_changes_nothing() -> None:
    now = holders_of(spread(1, 2, ["w0"]))
    assert next_holders(now, now, frozenset(), ("w0",)) == now


def shifted(placement: Placement, epoch: int, to: int) -> Placement:
    holders = tuple(tuple((to,) for _ in experts) for experts in placement.holders)
    return Placement(epoch, placement.workers, holders)


def test_loads_and_unloads_by_worker() -> None:
    old = spread(1, 4, ["w0", "w1"])
    change = plan_change(old, shifted(old, 2, 1), frozenset({"w0", "w1"}))
    assert change.loads == {"w1": ((0, 0), (0, 2))}
    assert change.unloads == {"w0": ((0, 0), (0, 2))}
    assert change.experts_to_load == 2


def test_a_change_that_cannot_be_is_refused() -> None:
    old = spread(1, 4, ["w0", "w1"], epoch=5)
    with pytest.raises(InvalidInput, match="epoch: expected above 5, got 5"):
        plan_change(old, shifted(old, 5, 1), frozenset({"w0", "w1"}))
    with pytest.raises(InvalidInput, match="new holders that live, got w1"):
        plan_change(old, shifted(old, 6, 1), frozenset({"w0"}))
    with pytest.raises(InvalidInput, match="placement: expected 1 layers of 4"):
        plan_change(old, spread(1, 3, ["w0"], epoch=6), frozenset({"w0"}))
    two = spread(1, 4, ["w0", "w1"], 2)
    with pytest.raises(InvalidInput, match="a holder that lives, got w1"):
        plan_change(two, shifted(two, 2, 1), frozenset({"w0"}))
