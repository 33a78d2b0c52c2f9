"""Turn a change of placement into work: which experts each worker loads before it and drops after it. Pure.

The order keeps every expert served: first all loads (prepare), then routers switch (commit), then, when nobody uses
the old placement any more, the drops (retire). A failure before the commit is undone by dropping what was loaded
(abort).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from colibri.cluster.experts.holders import ExpertId, held, holders_of
from colibri.errors import InvalidInput
from colibri.placement import Placement


@dataclass(frozen=True, slots=True)
class Change:
    """The work of a change. loads, unloads: by worker, ascending; workers with nothing to do are left out."""

    old: Placement
    new: Placement
    loads: Mapping[str, tuple[ExpertId, ...]]
    unloads: Mapping[str, tuple[ExpertId, ...]]

    @property
    def experts_to_load(self) -> int:
        return sum(map(len, self.loads.values()))


def plan_change(old: Placement, new: Placement, alive: frozenset[str]) -> Change:
    """Plans the change from `old` to `new`.

    Raises InvalidInput if `new` is not later, has another shape, or makes a worker a holder that is dead and so
    cannot load; and if an expert that a live worker holds would have no live holder.
    """
    if new.epoch <= old.epoch:
        raise InvalidInput("epoch", f"above {old.epoch}", new.epoch)
    if (new.layers, new.experts) != (old.layers, old.experts):
        expected = f"{old.layers} layers of {old.experts} experts"
        raise InvalidInput("placement", expected, f"{new.layers} of {new.experts}")
    before, after = holders_of(old), holders_of(new)
    for layer, experts in enumerate(after):
        for expert, names in enumerate(experts):
            had = before[layer][expert]
            dead = [name for name in names if name not in alive and name not in had]
            if dead:
                raise InvalidInput(f"holders[{layer}][{expert}]", "new holders that live", ", ".join(dead))
            if alive.intersection(had) and not alive.intersection(names):
                raise InvalidInput(f"holders[{layer}][{expert}]", "a holder that lives", ", ".join(names))
    names = (*old.workers, *(name for name in new.workers if name not in old.workers))
    nothing: set[ExpertId] = set()
    earlier, later = held(before), held(after)
    both = {name: (earlier.get(name, nothing), later.get(name, nothing)) for name in names}
    return Change(
        old,
        new,
        {name: tuple(sorted(has - had)) for name, (had, has) in both.items() if has - had},
        {name: tuple(sorted(had - has)) for name, (had, has) in both.items() if had - has},
    )
