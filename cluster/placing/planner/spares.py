"""Remember copies that could be dropped."""

from __future__ import annotations

from colibri.cluster.placing.planner.layout import Layout
from colibri.row_division import Levelling


class Spares:
    """Copies that nobody needs: surplus ones whose worker answers for nothing of them."""

    def __init__(self, layout: Layout, levels: list[Levelling]) -> None:
        self._layout = layout
        self._levels = levels
        self._of: list[list[tuple[int, int]]] = [[] for _ in layout.names]
        for layer, experts in enumerate(layout.holders):
            for expert, holders in enumerate(experts):
                for worker in holders if len(holders) > layout.wanted(layer, expert) else ():
                    if worker not in levels[layer].pieces[expert] and layout.may_go(layer, expert, worker):
                        self._of[worker].append((layer, expert))

    def offer(self, layer: int, expert: int, worker: int) -> None:
        """Notes that the worker no longer answers for the expert."""
        self._of[worker].append((layer, expert))

    def take(self, worker: int) -> tuple[int, int] | None:
        """Returns a copy that can be dropped, the latest offered, or None."""
        layout, found = self._layout, self._of[worker]
        while found:
            layer, expert = found.pop()
            if (
                worker in layout.holders[layer][expert]
                and worker not in self._levels[layer].pieces[expert]
                and layout.may_go(layer, expert, worker)
                and (layer, expert) not in layout.problem.pinned
            ):
                return layer, expert
        return None
