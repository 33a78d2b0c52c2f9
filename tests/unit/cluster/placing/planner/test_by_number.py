"""Plans where loads are not known: numbers of experts, evened out with few moves."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.cluster.experts.holders import Holders, as_placement, copies, held_by, holders_of
from colibri.cluster.placing.planner.plan import plan
from colibri.cluster.placing.planner.problem import Problem, Worker
from colibri.errors import InvalidInput
from colibri.placement import spread


def rebalance(
    holders: Holders,
    workers: list[str],
    replicas: int,
    pinned: set[tuple[int, int]] | None = None,
    *,
    even: bool = True,
) -> Holders:
    copies_wanted = min(replicas, len(workers)) or replicas
    known = tuple(Worker(name) for name in workers)
    return plan(Problem(known, holders, copies_wanted, pinned=frozenset(pinned or ()), even=even)).holders


def made(layers: int, experts: int, workers: int, replicas: int = 1) -> Holders:
    return holders_of(spread(layers, experts, names(workers), replicas))


def names(count: int, first: int = 0) -> list[str]:
    return [f"w{index}" for index in range(first, first + count)]


def loads(old: Holders, new: Holders) -> int:
    workers = copies(old) | copies(new)
    return sum(len(held_by(new, worker) - held_by(old, worker)) for worker in workers)


def check_even(holders: Holders, workers: list[str], replicas: int) -> None:
    totals: Counter[str] = Counter()
    for experts in holders:
        for counted in (experts, [hs[:1] for hs in experts]):
            counts = Counter(name for hs in counted for name in hs)
            assert max(counts.values()) - min(counts[name] for name in workers) <= 1
        totals += Counter(name for hs in experts for name in hs)
        for hs in experts:
            assert len(hs) == len(set(hs)) == min(replicas, len(workers))
            assert set(hs) <= set(workers)
    assert max(totals.values()) - min(totals[name] for name in workers) <= 1


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 6), st.integers(1, 3), st.data())
@settings(deadline=None, max_examples=150)
def test_any_change_of_workers_is_even(
    layers: int, experts: int, workers: int, replicas: int, data: st.DataObject
) -> None:
    holders = made(layers, experts, workers, min(replicas, workers))
    for _ in range(data.draw(st.integers(1, 3))):
        chosen = data.draw(st.sets(st.sampled_from(names(8)), min_size=1, max_size=6))
        new = rebalance(holders, sorted(chosen), replicas)
        if experts * min(replicas, len(chosen)) >= len(chosen):
            check_even(new, sorted(chosen), replicas)
        assert rebalance(new, sorted(chosen), replicas) == new
        holders = new


@pytest.mark.parametrize(
    ("before", "after", "moved"), [(2, 4, 4), (4, 2, 4), (1, 4, 6), (3, 4, 2), (4, 8, 4)]
)
def test_scaling_moves_no_expert_more_than_needed(before: int, after: int, moved: int) -> None:
    """8 experts on one layer: those that the new workers take, or those that the old ones leave."""
    old = made(1, 8, before)
    new = rebalance(old, names(after), 1)
    assert loads(old, new) == moved
    check_even(new, names(after), 1)


@given(st.integers(1, 3), st.integers(1, 16), st.integers(1, 6), st.integers(1, 6))
@settings(deadline=None)
def test_moves_of_single_holders_are_the_fewest(layers: int, experts: int, before: int, after: int) -> None:
    """Whoever gains an expert gains what it lacks: nobody both gains and loses within a layer, but for the evening
    out of sums, which moves at most one expert per layer and worker."""
    old = made(layers, experts, before)
    new = rebalance(old, names(after), 1)
    for was, now in zip(old, new, strict=True):
        had, has = Counter(hs[0] for hs in was), Counter(hs[0] for hs in now)
        needed = sum(max(0, has[name] - had[name]) for name in names(after))
        moved = sum(1 for a, b in zip(was, now, strict=True) if a != b)
        assert needed <= moved <= needed + after


def test_a_worker_that_leaves_moves_only_its_own() -> None:
    old = made(3, 8, 4, 2)
    new = rebalance(old, ["w0", "w1", "w3"], 2)
    for was, now in zip(old, new, strict=True):
        for before, after in zip(was, now, strict=True):
            assert set(before) - {"w2"} <= set(after) or "w2" not in before
    assert loads(old, new) >= len(held_by(old, "w2"))
    check_even(new, ["w0", "w1", "w3"], 2)


def test_not_even_moves_nothing_but_orphans() -> None:
    old = made(2, 8, 4, 2)
    new = rebalance(old, ["w0", "w1", "w3"], 2, even=False)
    assert loads(old, new) == len(held_by(old, "w2"))


def test_fewer_workers_than_replicas_and_back() -> None:
    old = made(2, 4, 3, 3)
    one = rebalance(old, ["w1"], 3)
    assert all(hs == ("w1",) for experts in one for hs in experts)
    back = rebalance(one, names(3), 3)
    check_even(back, names(3), 3)


def test_pinned_experts_stay_as_they_are() -> None:
    old = made(1, 8, 2)
    lopsided = (tuple(("w0",) for _ in range(8)),)
    pinned = {(0, expert) for expert in range(6)}
    assert old != lopsided
    new = rebalance(lopsided, names(2), 1, pinned)
    assert list(new[0]) == [("w0",)] * 6 + [("w1",)] * 2
    # Two holders where one is the rule, and one where two are; a pinned one that loses its holder finds another.
    odd: Holders = ((("w0", "w1"), ("w1",), ("w2",), ("w0",)),)
    assert rebalance(odd, names(3), 1, {(0, 0)})[0][0] == ("w0", "w1")
    assert len(rebalance(odd, names(3), 2, {(0, 1)})[0][1]) == 1
    moved = rebalance(odd, names(2), 1, {(0, 0), (0, 2)})
    assert moved[0][0] == ("w0", "w1")
    assert moved[0][2][0] in names(2)


def test_first_holders_are_shared_out_without_a_load() -> None:
    lopsided: Holders = (tuple(("w0", "w1") for _ in range(6)),)
    new = rebalance(lopsided, names(2), 2)
    assert loads(lopsided, new) == 0
    assert Counter(hs[0] for hs in new[0]) == {"w0": 3, "w1": 3}


def test_a_large_model_is_planned_in_no_time() -> None:
    old = made(61, 256, 8, 2)
    new = rebalance(old, names(12), 2)
    check_even(new, names(12), 2)
    assert loads(old, new) <= 61 * 256 * 2 * 4 // 12 + 61 * 12


def test_names_and_indices_say_the_same() -> None:
    placement = spread(2, 5, names(3), 2, epoch=4)
    assert as_placement(holders_of(placement), placement.workers, 4) == placement
    assert all(
        held_by(holders_of(placement), name) == set(placement.experts_of(index))
        for index, name in enumerate(placement.workers)
    )


@pytest.mark.parametrize(("workers", "replicas", "field"), [([], 1, "workers"), (["w0"], 0, "replicas")])
def test_nonsense_is_refused(workers: list[str], replicas: int, field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        rebalance(made(1, 2, 1), workers, replicas)


def test_a_sequence_of_scales_stays_even_and_replicas_never_meet() -> None:
    sizes = [2, 4, 2, 3, 5, 1, 4]
    holders = made(3, 8, 2, 2)
    for before, after in pairwise(sizes):
        new = rebalance(holders, names(after), 2)
        check_even(new, names(after), 2)
        assert before != after
        holders = new
