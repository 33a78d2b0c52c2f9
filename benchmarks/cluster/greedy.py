"""The published greedy balancing, to compare with: replicas for the heaviest experts until all slots are taken, then
each replica, the heaviest first, to the least loaded worker with a free slot.

Written after the description of DeepSeek's EPLB (https://github.com/deepseek-ai/EPLB, "global" policy): every worker
has the same number of slots in each layer, replicas of an expert share its load evenly, each plan is made from nothing,
and nothing keeps two replicas of one expert apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class GreedyPlan:
    """slots: intp [layers, workers, slots], expert of each; ratio: f64 [layers], largest over mean load."""

    slots: NDArray[np.intp]
    ratio: NDArray[np.float64]

    def held(self) -> set[tuple[int, int, int]]:
        """(layer, worker, expert)"""
        layers, workers, _ = self.slots.shape
        return {
            (layer, worker, int(expert))
            for layer in range(layers)
            for worker in range(workers)
            for expert in self.slots[layer, worker]
        }

    def ratios(self, loads: NDArray[np.floating]) -> NDArray[np.float64]:
        """Of each layer under other loads, replicas sharing them evenly."""
        found = []
        for slots, row in zip(self.slots, loads, strict=True):
            copies = np.bincount(slots.ravel(), minlength=len(row))
            taken = (row / np.maximum(copies, 1))[slots].sum(axis=1)
            found.append(taken.max() / taken.mean())
        return np.array(found)


def greedy(loads: NDArray[np.floating], workers: int, slots: int) -> GreedyPlan:
    """loads [layers, experts]; workers x slots at least as many as experts."""
    plans = [_layer(row, workers, slots) for row in loads]
    made = np.array(plans)
    return GreedyPlan(made, GreedyPlan(made, np.zeros(len(plans))).ratios(loads))


def _layer(loads: NDArray[np.floating], workers: int, slots: int) -> list[list[int]]:
    copies = np.ones(len(loads), np.intp)
    for _ in range(workers * slots - len(loads)):
        copies[np.argmax(loads / copies)] += 1
    replicas = np.repeat(np.arange(len(loads)), copies)
    weight = (loads / copies)[replicas]
    taken, packs = np.zeros(workers), [list[int]() for _ in range(workers)]
    for replica in np.argsort(-weight, kind="stable"):
        free = [worker for worker in range(workers) if len(packs[worker]) < slots]
        best = min(free, key=lambda worker: taken[worker])
        packs[best].append(int(replicas[replica]))
        taken[best] += weight[replica]
    return packs
