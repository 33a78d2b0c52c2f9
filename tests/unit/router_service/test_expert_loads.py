from __future__ import annotations

import threading

import numpy as np

from colibri.kernels.api import GateResult
from colibri.router_service.expert_loads import ExpertLoads


def gate(rng: np.random.Generator, rows: int, bad: float = 0.0) -> GateResult:
    experts = np.argsort(rng.random((rows, 8)), axis=1)[:, :2].astype(np.uint16)
    return GateResult(experts, np.ones((rows, 2), np.float32), rng.random(rows) >= bad)


def test_counts_are_those_of_the_gates() -> None:
    rng = np.random.default_rng(1)
    loads = ExpertLoads(3, 8)
    expected = np.zeros((3, 8), np.int64)
    assert np.array_equal(loads.snapshot(), expected)
    for rows in (0, 1, 2, 600, 1, 4096, 7):
        layer = int(rng.integers(3))
        made = gate(rng, rows, 0.2)
        loads.add(layer, made)
        for row in np.flatnonzero(made.ok):
            expected[layer, made.experts[row]] += 1
    assert np.array_equal(loads.snapshot(), expected)
    assert np.array_equal(loads.snapshot(), expected), "looking changes nothing"


def test_no_row_is_lost_between_threads() -> None:
    loads = ExpertLoads(2, 8)

    def add(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            loads.add(seed % 2, gate(rng, 3))
            if seed == 0:
                loads.snapshot()

    threads = [threading.Thread(target=add, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert loads.snapshot().sum(axis=1).tolist() == [2 * 300 * 3 * 2] * 2
