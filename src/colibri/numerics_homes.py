"""Decide which workers may hold an expert, if the workers of a deployment do not all compute the same bits. Pure.

Each expert has one numerics id as its home for as long as the deployment lives, and only workers with that id ever
hold it. So any holder that answers, by division, hedge, failover or a new placement, computes the same bits. An
answer depends on the request and on the homes, never on timing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from colibri.errors import InvalidInput
from colibri.placement import Placement, spread

OPTION = "--mixed-numerics"


@dataclass(frozen=True, slots=True)
class NumericsHomes:
    """The numerics ids of experts and workers.

    experts: id of each expert, the same in every layer.
    workers: name -> id, for workers whose id is not `usual`.
    """

    experts: tuple[str, ...]
    usual: str
    workers: Mapping[str, str] = field(default_factory=dict)

    def of(self, worker: str) -> str:
        return self.workers.get(worker, self.usual)

    def may_hold(self, worker: str, expert: int) -> bool:
        return self.of(worker) == self.experts[expert]

    def check_present(self, workers: Iterable[str]) -> None:
        """Raises InvalidInput if an id that is an expert's home would have no worker."""
        there = {self.of(worker) for worker in workers}
        for home in dict.fromkeys(self.experts):
            if home not in there:
                raise InvalidInput("workers", f"at least one of {home}, which experts belong to", "none")


def assign_homes(experts: int, workers: Mapping[str, int]) -> tuple[str, ...]:
    """Returns the home of each of `experts`.

    workers: id -> number of its workers. An id gets its share of the experts by largest remainder, at least one,
        and its experts lie as far apart as possible.

    Raises InvalidInput for fewer experts than ids.
    """
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
    """Spreads each id's experts over its workers (colibri.placement.spread).

    Raises InvalidInput, also if an id has fewer workers than `replicas`.
    """
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
