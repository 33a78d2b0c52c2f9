"""Even out loads layer by layer, since all workers of a layer are waited for together.

First divide rows among the existing holders. If that leaves a layer above the trigger, add copies
(`replicate_hot`), in the worst layer first.
"""

from __future__ import annotations

from colibri.cluster.placing.planner.layout import Layout
from colibri.cluster.placing.planner.problem import Loads
from colibri.cluster.placing.planner.replicate_hot import HotReplication
from colibri.cluster.placing.planner.spares import Spares
from colibri.row_division import Levelling


def balance(layout: Layout, loads: Loads) -> list[Levelling]:
    """Adds, moves and drops copies. Returns the division of each layer."""
    workers = list(range(len(layout.names)))
    levels = []
    for holders, layer_loads in zip(layout.holders, loads, strict=True):
        level = Levelling(holders, layer_loads, layout.speeds, workers)
        level.assign(divided=True)
        level.settle()
        level.journal = []
        levels.append(level)
    spares = Spares(layout, levels)
    order = sorted(range(len(levels)), key=lambda layer: -_excess(levels[layer]))
    for layer in order:
        if levels[layer].ratio() > layout.problem.trigger:
            HotReplication(layout, levels, spares, layer).run()
    return levels


def _excess(level: Levelling) -> float:
    return max((level.load[w] - level.even[w] for w in level.workers), default=0.0)
