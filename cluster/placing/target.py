"""Choose the next placement, given what is wanted and which workers live. Pure."""

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
    """Returns `wanted`, as far as the live workers allow.

    alive: workers that hold all that `current` gives them; nothing, if it does not name them.
    order: of names, so that ties have one answer.
    able: live workers that can load now; None: all.
    homes: who may hold what; None: all may.

    A dead worker becomes no new holder, but remains one: it is expected back. If that leaves fewer live holders
    than wanted, live holders of `current` fill up. An expert that no live worker would hold goes to the least
    loaded worker that may hold it, so that requests find it again; if there is none, it waits for its holders.
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
