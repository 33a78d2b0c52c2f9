"""The recorded routing of the demo model, planned for 16 workers; and that what it is compared with is what it says."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.cluster.greedy import greedy
from benchmarks.cluster.routing import KINDS, TOKENS, counts, kind_of, recorded
from colibri.cluster.experts.holders import as_placement, copies
from colibri.cluster.placing.planner.outcome import balance_of
from colibri.cluster.placing.planner.plan import plan
from colibri.cluster.placing.planner.problem import Problem, Worker
from colibri.cluster.placing.planner.seed import seed

LAYERS, EXPERTS = 30, 8
WORKERS = tuple(Worker(f"w{index}", memory=2 * LAYERS) for index in range(16))


def test_the_record_is_of_the_demo_model() -> None:
    found = recorded()
    assert set(found) == set(KINDS)
    for choices in found.values():
        assert choices.shape == (LAYERS, TOKENS, 2)
        assert choices.max() < EXPERTS
        assert (choices[..., 0] != choices[..., 1]).all()
    assert kind_of("def f(x): return x") == "code"
    assert kind_of("Где мой дом?") == "scripts"


@pytest.mark.parametrize("kind", KINDS)
def test_recorded_loads_are_level_within_the_memory(kind: str) -> None:
    loads = tuple(tuple(row) for row in counts(recorded()[kind], EXPERTS).tolist())
    start = seed(LAYERS, EXPERTS, WORKERS, 1)
    planned = plan(Problem(WORKERS, start, 1, loads))
    names = [worker.name for worker in WORKERS]
    assert balance_of(as_placement(start, names, 1), loads).worst > 2
    assert balance_of(as_placement(planned.holders, names, 1, loads), loads).worst <= 1.05
    assert max(copies(planned.holders).values()) <= 2 * LAYERS


def test_the_greedy_planner() -> None:
    loads = counts(recorded()["prose"], EXPERTS)
    made = greedy(loads, 16, 2)
    assert made.slots.shape == (LAYERS, 16, 2)
    for layer in made.slots:
        assert set(layer.ravel().tolist()) == set(range(EXPERTS))
    assert (made.ratio < 1.5).all()
    assert np.array_equal(made.ratio, made.ratios(loads))
    # By hand: 6 slots; expert 0 gets the spare ones; 4/3 + 1, 4/3 + 1, 4/3 + 1.
    small = greedy(np.array([[4.0, 1.0, 1.0, 1.0]]), 3, 2)
    assert np.bincount(small.slots.ravel()).tolist() == [3, 1, 1, 1]
    assert small.ratio[0] == pytest.approx(1.0)
