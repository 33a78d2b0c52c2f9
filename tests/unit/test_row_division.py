"""Dividing a layer's load among the holders of its experts, compared with the optimum by maximum flow."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from colibri.row_division import PARTS, SLACK, divide, worker_loads

Case = tuple[list[list[int]], list[float], list[float]]


@st.composite
def layers(draw: st.DrawFn) -> Case:
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    workers = draw(st.integers(1, 12))
    experts = draw(st.integers(1, 24))
    most = draw(st.integers(1, min(4, workers)))
    holders = [rng.permutation(workers)[: rng.integers(1, most + 1)].tolist() for _ in range(experts)]
    kind = draw(st.sampled_from(["even", "zipf", "holes", "none"]))
    loads = {
        "even": rng.random(experts) + 0.5,
        "zipf": 1.0 / (1 + rng.permutation(experts)) ** 1.2,
        "holes": rng.random(experts) * (rng.random(experts) < 0.5),
        "none": np.zeros(experts),
    }[kind]
    speeds = rng.choice([1.0, 2.0, 0.5], workers) if draw(st.booleans()) else np.ones(workers)
    return holders, loads.tolist(), speeds.tolist()


def can(case: Case, level: float) -> bool:
    """Whether some division has load / speed <= level everywhere: maximum flow, in the plainest way."""
    holders, loads, speeds = case
    room = [level * speed for speed in speeds]
    pieces: list[dict[int, float]] = [{} for _ in holders]
    dust = 1e-12 * sum(loads)
    for expert, load in enumerate(loads):
        left = load
        while left > dust:
            came: dict[int, tuple[int, int]] = {}
            queue: deque[int] = deque()
            for worker in holders[expert]:
                came[worker] = (-1, expert)
                queue.append(worker)
            end = None
            while queue and end is None:
                worker = queue.popleft()
                if room[worker] > dust:
                    end = worker
                    break
                for other, mine in enumerate(pieces):
                    if mine.get(worker, 0.0) > dust:
                        for target in holders[other]:
                            if target not in came:
                                came[target] = (worker, other)
                                queue.append(target)
            if end is None:
                return False
            amount, worker = min(left, room[end]), end
            while came[worker][0] >= 0:
                source, other = came[worker]
                amount, worker = min(amount, pieces[other][source]), source
            room[end] -= amount
            left -= amount
            worker = end
            while worker >= 0:
                source, other = came[worker]
                pieces[other][worker] = pieces[other].get(worker, 0.0) + amount
                if source >= 0:
                    pieces[other][source] -= amount
                worker = source
    return True


@given(layers())
@settings(max_examples=400, deadline=None)
def test_the_largest_is_what_the_holders_allow(case: Case) -> None:
    holders, loads, speeds = case
    division = divide(holders, loads, speeds)
    for names, parts in zip(holders, division, strict=True):
        assert {worker for worker, _ in parts} <= set(names)
        assert sum(count for _, count in parts) == PARTS
        assert all(count > 0 for _, count in parts)
        assert sorted((count for _, count in parts), reverse=True) == [count for _, count in parts]
    taken = worker_loads(division, loads, len(speeds))
    assert sum(taken) == pytest.approx(sum(loads))
    largest = max(load / speed for load, speed in zip(taken, speeds, strict=True))
    # Rounding to parts: half a one or so for each divided expert of a worker.
    rounding = sum(load for load, parts in zip(loads, division, strict=True) if len(parts) > 1) / PARTS
    allowed = largest - rounding / min(speeds)
    assert not can(case, allowed / ((1 + SLACK) ** 2) * 0.999) or allowed <= 0 or largest == 0


@given(layers())
@settings(max_examples=100, deadline=None)
def test_nothing_is_divided_in_vain(case: Case) -> None:
    holders, loads, speeds = case
    division = divide(holders, loads, speeds)
    workers = {worker for names in holders for worker in names}
    # A forest has fewer edges than nodes; a chain that ends in the middle may add one for each worker.
    extra = sum(len(parts) - 1 for parts in division)
    assert extra <= 2 * len(workers)
    assert divide(holders, loads, speeds) == division


def test_without_loads_nothing_is_divided() -> None:
    division = divide([[0, 1], [0, 1], [0, 1], [1]], None, None)
    assert sorted(parts[0][0] for parts in division) == [0, 0, 1, 1]
    assert all(len(parts) == 1 for parts in division)


def test_one_hot_expert_on_all_workers() -> None:
    division = divide([[0, 1, 2, 3], [0], [1], [2], [3]], [4.0, 0, 0, 0, 0], [1.0, 1.0, 1.0, 1.0])
    assert sorted(parts for _, parts in division[0]) == pytest.approx([PARTS // 4] * 4, abs=PARTS // 50)
    fast = divide([[0, 1]], [1.0], [3.0, 1.0])
    assert dict(fast[0])[0] == pytest.approx(PARTS * 3 // 4, abs=PARTS // 50)


def test_load_goes_along_chains() -> None:
    """w0's load can only go to w2 by w1 giving some of its own away."""
    loads = [2.0, 1.0, 0.0]
    taken = worker_loads(divide([[0, 1], [1, 2], [2]], loads, [1.0, 1.0, 1.0]), loads, 3)
    assert max(taken) <= 1.03


def test_a_large_layer() -> None:
    rng = np.random.default_rng(1)
    holders = [rng.permutation(200)[:2].tolist() for _ in range(256)]
    division = divide(holders, rng.random(256).tolist(), [1.0] * 200)
    assert len(division) == 256
