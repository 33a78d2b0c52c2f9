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
class Kinds:
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
        for kind in dict.fromkeys(self.experts):
            if kind not in there:
                raise InvalidInput("workers", f"at least one of {kind}, which experts belong to", "none")


def share_out(experts: int, workers: Mapping[str, int]) -> tuple[str, ...]:
    """To which id each of `experts` belongs. workers: how many of each id there are: it gets its part of the experts,
    by largest remainder, at least one; those of an id lie as far apart as they can.

    Raises InvalidInput for fewer experts than ids."""
    ids = sorted(workers)
    if experts < len(ids):
        raise InvalidInput("experts", f"at least {len(ids)}, one for each numerics id", experts)
    total = sum(workers.values())
    parts = {kind: max(1, experts * workers[kind] // total) for kind in ids}
    while sum(parts.values()) != experts:
        by_want = sorted(ids, key=lambda kind: experts * workers[kind] / total - parts[kind])
        if sum(parts.values()) < experts:
            parts[by_want[-1]] += 1
        else:
            parts[next(kind for kind in by_want if parts[kind] > 1)] -= 1
    # Each in turn to whoever is the furthest behind its part.
    given, found = dict.fromkeys(ids, 0), []
    for number in range(1, experts + 1):
        kind = max(ids, key=lambda kind: parts[kind] * number / experts - given[kind])
        given[kind] += 1
        found.append(kind)
    return tuple(found)


def spread_kinds(
    layers: int, workers: Sequence[str], kinds: Kinds, replicas: int = 1, epoch: int = 1
) -> Placement:
    """colibri.placement.spread of each id's experts over its workers. Raises InvalidInput, also where an id has fewer
    workers than `replicas`."""
    kinds.check_present(workers)
    holders: list[list[tuple[int, ...]]] = [[() for _ in kinds.experts] for _ in range(layers)]
    for kind in dict.fromkeys(kinds.experts):
        able = [index for index, worker in enumerate(workers) if kinds.of(worker) == kind]
        numbers = [expert for expert, own in enumerate(kinds.experts) if own == kind]
        if replicas > len(able):
            raise InvalidInput("replicas", f"at most {len(able)} (the number of workers of {kind})", replicas)
        part = spread(layers, len(numbers), [workers[index] for index in able], replicas)
        for layer, experts in enumerate(part.holders):
            for expert, names in zip(numbers, experts, strict=True):
                holders[layer][expert] = tuple(able[name] for name in names)
    return Placement(epoch, tuple(workers), tuple(tuple(experts) for experts in holders))
