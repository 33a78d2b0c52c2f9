"""Make a first placement: round-robin over workers, ordered so that neighbours are on different hosts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, zip_longest

from colibri.cluster.experts.holders import Holders, holders_of
from colibri.cluster.placing.planner.problem import Worker
from colibri.placement import spread


def seed(layers: int, experts: int, workers: Sequence[Worker], replicas: int) -> Holders:
    """Raises InvalidInput. If hosts are unequal, replicas may still share one; planning moves them apart."""
    by_host: dict[str, list[str]] = {}
    for worker in workers:
        by_host.setdefault(worker.domain, []).append(worker.name)
    turns = zip_longest(*sorted(by_host.values(), key=len, reverse=True))
    order = [name for name in chain.from_iterable(turns) if name is not None]
    return holders_of(spread(layers, experts, order, min(replicas, len(order))))
