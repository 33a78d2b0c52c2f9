"""Which workers an expert may lie on, where the workers of a deployment do not all compute the same bits.

Each expert belongs to one numerics id, for as long as the deployment lives, and only workers of that id ever hold it.
So whichever holder answers for it, by division, hedge, failover or a new placement, computes the same bits: what an
answer is depends on the request and on who belongs to whom, never on timing. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from colibri.errors import InvalidInput
from colibri.placement import Placement, spread

OPTION = "--mixed-numerics"


@dataclass(frozen=True, slots=True)
class NumericsHomes:
    """Numerics ids. experts: of each expert, in every layer; workers: by name, of those that are not `usual`."""

    experts: tuple[str, ...]
    usual: str
    workers: Mapping[str, str] = field(default_factory=dict)

    def of(self, worker: str) -> str:
        return self.workers.get(worker, self.usual)

    def may_hold(self, worker: str, expert: int) -> bool:
        return self.of(worker) == self.experts[expert]

    def check_present(self, workers: Iterable[str]) -> None:
        """Raises InvalidInput where an id that experts belong to would have no worker."""
        there = {self.of(worker) for worker in workers}
        for home in dict.fromkeys(self.experts):
            if home not in there:
                raise InvalidInput("workers", f"at least one of {home}, which experts belong to", "none")


def assign_homes(experts: int, workers: Mapping[str, int]) -> tuple[str, ...]:
    """To which id each of `experts` belongs. workers: how many of each id there are: it gets its part of the experts,
    by largest remainder, at least one; those of an id lie as far apart as they can.

    Raises InvalidInput for fewer experts than ids."""
    ids = sorted(workers)
    if experts < len(ids):
        raise InvalidInput("experts", f"at least {len(ids)}, one for each numerics id", experts)
    total = sum(workers.values())
    parts = {home: max(1, experts * workers[home] // total) for home in ids}
    while sum(parts.values()) != experts:
        by_want = sorted(ids, key=lambda home: experts * workers[home] / total - parts[home])
        if sum(parts.values()) < experts:
            parts[by_want[-1]] += 1
        else:
            parts[next(home for home in by_want if parts[home] > 1)] -= 1
    # Each in turn to whoever is the furthest behind its part.
    given, found = dict.fromkeys(ids, 0), []
    for number in range(1, experts + 1):
        home = max(ids, key=lambda home: parts[home] * number / experts - given[home])
        given[home] += 1
        found.append(home)
    return tuple(found)


def spread_by_home(
    layers: int, workers: Sequence[str], homes: NumericsHomes, replicas: int = 1, epoch: int = 1
) -> Placement:
    """colibri.placement.spread of each id's experts over its workers. Raises InvalidInput, also where an id has fewer
    workers than `replicas`."""
    homes.check_present(workers)
    holders: list[list[tuple[int, ...]]] = [[() for _ in homes.experts] for _ in range(layers)]
    for home in dict.fromkeys(homes.experts):
        able = [index for index, worker in enumerate(workers) if homes.of(worker) == home]
        numbers = [expert for expert, own in enumerate(homes.experts) if own == home]
        if replicas > len(able):
            raise InvalidInput("replicas", f"at most {len(able)} (the number of workers of {home})", replicas)
        part = spread(layers, len(numbers), [workers[index] for index in able], replicas)
        for layer, experts in enumerate(part.holders):
            for expert, names in zip(numbers, experts, strict=True):
                holders[layer][expert] = tuple(able[name] for name in names)
    return Placement(epoch, tuple(workers), tuple(tuple(experts) for experts in holders))
