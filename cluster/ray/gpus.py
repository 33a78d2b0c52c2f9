"""Count how many workers a Ray cluster has GPUs for, if nobody set the number."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from colibri.cluster.ray.options import RESOURCE, RayOptions, Spread
from colibri.cluster.ray.session import NodeView
from colibri.cluster.ray.shortage import needs_and_has
from colibri.deadline import Clock
from colibri.errors import DeadlineExpired

#: A cluster that just comes up takes in its hosts one after another: the count stands when it has not changed for so
#: long.
SETTLED_S = 10.0
_LOOK_S = 0.5


def gpu_seats(nodes: Sequence[NodeView], spread: Spread) -> int:
    """Counts workers that each get a seat and a GPU; with Spread.HOSTS, at most one per host."""
    each = [min(node.seats, node.gpus) for node in nodes]
    return sum(min(count, 1) for count in each) if spread is Spread.HOSTS else sum(each)


def count_gpu_workers(
    options: RayOptions,
    nodes: Callable[[], Sequence[NodeView]],
    log: Callable[[str], None],
    *,
    clock: Clock = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Waits for hosts to join, and counts. Raises DeadlineExpired if none has both within place_s.

    nodes: returns the nodes that live now.
    """
    begun = changed_at = clock()
    count = -1
    while True:
        now, found = clock(), gpu_seats(nodes(), options.spread)
        if found != count:
            count, changed_at = found, now
        if count and (now - changed_at >= SETTLED_S or now - begun >= options.place_s):
            break
        if now - begun >= options.place_s:
            there = nodes()
            free = float(sum(node.seats for node in there))
            told = needs_and_has(("w0",), options.spread, 1, 1, there, free)
            raise DeadlineExpired(f"no GPU within {options.place_s:g} s: {told}", peer="ray")
        sleep(_LOOK_S)
    where = "host with a GPU" if options.spread is Spread.HOSTS else f"{RESOURCE} with a GPU"
    log(f"workers: {count}, one for each {where} (--workers says another number)")
    return count
