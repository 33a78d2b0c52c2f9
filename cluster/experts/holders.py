"""Who holds which expert, by worker name: what plans are made of. Pure; `Placement` says the same by index."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from colibri.placement import Placement

#: (layer, expert)
ExpertId = tuple[int, int]
#: [layer][expert] -> names of its holders, in order of preference.
Holders = tuple[tuple[tuple[str, ...], ...], ...]


def holders_of(placement: Placement) -> Holders:
    names = placement.workers
    return tuple(
        tuple(tuple(names[index] for index in holders) for holders in experts)
        for experts in placement.holders
    )


def as_placement(
    holders: Holders,
    workers: Sequence[str],
    epoch: int,
    loads: tuple[tuple[float, ...], ...] | None = None,
    speeds: tuple[float, ...] | None = None,
) -> Placement:
    """Returns the holders as a Placement. Raises InvalidInput as Placement does.

    workers: all that are named, in the order of their indices.
    speeds: in the same order.
    """
    index = {name: position for position, name in enumerate(workers)}
    return Placement(
        epoch,
        tuple(workers),
        tuple(tuple(tuple(index[name] for name in names) for names in experts) for experts in holders),
        loads,
        speeds,
    )


def held_by(holders: Holders, worker: str) -> frozenset[ExpertId]:
    return frozenset(
        (layer, expert)
        for layer, experts in enumerate(holders)
        for expert, names in enumerate(experts)
        if worker in names
    )


def held(holders: Holders) -> dict[str, set[ExpertId]]:
    """Returns the experts of each worker that holds any."""
    found: dict[str, set[ExpertId]] = {}
    for layer, experts in enumerate(holders):
        for expert, names in enumerate(experts):
            for name in names:
                found.setdefault(name, set()).add((layer, expert))
    return found


def copies(holders: Holders) -> Counter[str]:
    """Counts the experts that each worker holds, over all layers."""
    return Counter(name for experts in holders for names in experts for name in names)


def lost_experts(holders: Holders, alive: frozenset[str]) -> list[ExpertId]:
    """Returns the experts that no live worker holds."""
    return [
        (layer, expert)
        for layer, experts in enumerate(holders)
        for expert, names in enumerate(experts)
        if not alive.intersection(names)
    ]
