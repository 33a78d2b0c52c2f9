"""What placement to have next, given what is wanted and who lives. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from colibri.cluster.experts.holders import Holders
from colibri.numerics_homes import NumericsHomes


def next_holders(
    wanted: Holders,
    current: Holders,
    alive: frozenset[str],
    order: Sequence[str],
    able: frozenset[str] | None = None,
    homes: NumericsHomes | None = None,
) -> Holders:
    """`wanted`, as far as those who live allow. alive: workers that hold all that `current` gives them, or
    nothing if it names them not at all; order: of names, so that ties have one answer; able: those of the living who
    can load now (None: all); homes: who may hold what (None: all).

    * A dead worker becomes no holder, but stays one: it is expected back.
    * Where that leaves fewer holders than wanted, living ones of `current` make up for it.
    * An expert that nobody alive would hold goes to the least loaded of those that may hold it, so that requests find
      it again; where there is none, it waits for its holders.
    """
    takers = alive if able is None else able
    rank = {name: position for position, name in enumerate(order)}
    result: list[list[tuple[str, ...]]] = []
    lost: list[tuple[int, int]] = []
    totals: Counter[str] = Counter()
    for layer, experts in enumerate(wanted):
        result.append([])
        for expert, names in enumerate(experts):
            now = current[layer][expert]
            kept = [name for name in names if name in alive or name in now]
            spare = [name for name in now if name in alive and name not in kept]
            kept += spare[: len(names) - len(kept)]
            if not alive.intersection(kept):
                kept = spare[:1]
            if not kept:
                lost.append((layer, expert))
            result[layer].append(tuple(kept))
            totals.update(kept)
    by_layer = [Counter(name for names in experts for name in names) for experts in result]
    for layer, expert in lost:
        may = takers if homes is None else [name for name in takers if homes.may_hold(name, expert)]
        if may:
            in_layer = by_layer[layer]
            best = min(may, key=lambda n: (in_layer[n], totals[n], rank.get(n, len(rank)), n))
            result[layer][expert] = (best,)
            in_layer[best] += 1
            totals[best] += 1
        else:
            result[layer][expert] = current[layer][expert]
    return tuple(tuple(experts) for experts in result)
