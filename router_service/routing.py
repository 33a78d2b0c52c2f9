"""Choose who answers for each expert now: the placement's holders, by what is known of the workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from colibri.placement import Membership, Placement
from colibri.router_service.peer import Peer
from colibri.router_service.plan_types import NOBODY, OwnerTable
from colibri.row_division import Division, divide

#: Ranks of a worker, best first: connected and in order; connected but ejected; alive without a connection; not alive.
READY, EJECTED, UNCONNECTED, ABSENT = range(4)


def division(placement: Placement, layer: int, ranks: Sequence[int]) -> Division:
    """Returns who answers for each expert, and for how much of it.

    That is the placement's own division if all its workers are in order. Otherwise holders of the best rank share
    evenly, by load, or by number if loads are unknown. So all share the load of a lost worker, instead of the next
    one alone.
    """
    planned = placement.division(layer)
    if all(ranks[worker] == READY for expert in planned for worker, _ in expert):
        return planned
    able = []
    for holders in placement.holders[layer]:
        best = min(ranks[worker] for worker in holders)
        able.append([worker for worker in holders if ranks[worker] == best])
    loads = None if placement.loads is None else placement.loads[layer]
    return divide(able, loads, placement.speeds)


def stand_ins(
    placement: Placement, layer: int, experts: Sequence[int], usable: Callable[[int], int | None]
) -> dict[int, int]:
    """Returns expert -> the usable holder of the best rank, or NOBODY. usable: gives a worker's rank, or None."""
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
    """One state of the workers, seen through one membership. Immutable, except that tables are made when first asked
    for.

    peers: by the placement's worker index; None: not alive.
    replaceable: by worker, whether another ready worker holds some of its experts.
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
            shares = division(self.placement, layer, self.ranks)
            table = self._tables[layer] = OwnerTable.of_division(shares, len(self.peers))
        return table
