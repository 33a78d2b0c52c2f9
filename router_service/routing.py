"""Who answers for each expert now: the placement's holders, by what is known of the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from colibri.kernels.api import U32
from colibri.placement import Membership, Placement
from colibri.router_service.peer import Peer
from colibri.router_service.plan_types import NOBODY, OwnerTable

#: Ranks of a worker, best first: connected and in order; connected but ejected; alive without a connection; not alive.
READY, EJECTED, UNCONNECTED, ABSENT = range(4)


def owners(placement: Placement, layer: int, ranks: Sequence[int]) -> U32:
    """Of each expert the first holder, where all of those are in order. Otherwise a holder of the best rank, and among
    several one that has the fewest experts to answer for: what a lost worker leaves is shared by all, not borne by the
    next. u32 [experts]."""
    first = placement.owner(layer)
    if all(ranks[worker] == READY for worker in set(first.tolist())):
        return first
    able = []
    for holders in placement.holders[layer]:
        best = min(ranks[worker] for worker in holders)
        able.append([worker for worker in holders if ranks[worker] == best])
    load = [0] * len(ranks)
    chosen = [0] * len(able)
    # Those without a choice first: the others make up for them.
    for expert in sorted(range(len(able)), key=lambda expert: len(able[expert])):
        chosen[expert] = worker = min(able[expert], key=load.__getitem__)
        load[worker] += 1
    moved = True
    while moved:  # ends: each move makes two loads more alike
        moved = False
        for expert, worker in enumerate(chosen):
            other = min(able[expert], key=load.__getitem__)
            if load[other] + 1 < load[worker]:
                chosen[expert] = other
                load[worker] -= 1
                load[other] += 1
                moved = True
    return np.array(chosen, dtype=np.uint32)


def stand_ins(
    placement: Placement, layer: int, experts: Sequence[int], usable: Callable[[int], int | None]
) -> dict[int, int]:
    """expert -> the usable holder of the best rank, or NOBODY. usable: a worker's rank, or None."""
    found = {}
    for expert in experts:
        best = NOBODY, ABSENT
        for worker in placement.holders[layer][expert]:
            rank = usable(worker)
            if rank is not None and rank < best[1]:
                best = worker, rank
        found[expert] = best[0]
    return found


class Routes:
    """One state of the workers, seen through one membership. Never changes, but that tables are made when first
    asked for.

    peers: by the placement's worker index, None: not alive; replaceable: whether another ready worker holds some of
    its experts.
    """

    __slots__ = ("_tables", "membership", "peers", "placement", "ranks", "replaceable", "version")

    def __init__(
        self, membership: Membership, version: int, peers: tuple[Peer | None, ...], ranks: tuple[int, ...]
    ) -> None:
        placement = membership.placement
        self.membership = membership
        self.placement = placement
        self.version = version
        self.peers = peers
        self.ranks = ranks
        self.replaceable = tuple(
            any(ranks[other] == READY for other in placement.partners(worker)) for worker in range(len(peers))
        )
        self._tables: dict[int, OwnerTable] = {}

    def table(self, layer: int) -> OwnerTable:
        table = self._tables.get(layer)
        if table is None:
            owner = owners(self.placement, layer, self.ranks)
            table = self._tables[layer] = OwnerTable.of(owner, len(self.peers))
        return table
