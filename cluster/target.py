"""What placement to have next, given what is wanted and who lives. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from colibri.cluster.holders import Holders


def next_holders(wanted: Holders, current: Holders, alive: frozenset[str], order: Sequence[str]) -> Holders:
    """`wanted`, as far as those who live allow. alive: workers that hold all that `current` gives them, or
    nothing if it names them not at all; order: of names, so that ties have one answer.

    * A dead worker becomes no holder, but stays one: it is expected back.
    * Where that leaves fewer holders than wanted, living ones of `current` make up for it.
    * An expert that nobody alive would hold goes to the least loaded, so that requests find it again.
    """
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
    for layer, expert in lost:
        in_layer = Counter(name for names in result[layer] for name in names)
        if alive:
            best = min(
                alive, key=lambda name: (in_layer[name], totals[name], rank.get(name, len(rank)), name)
            )
            result[layer][expert] = (best,)
            totals[best] += 1
        else:
            result[layer][expert] = current[layer][expert]
    return tuple(tuple(experts) for experts in result)
