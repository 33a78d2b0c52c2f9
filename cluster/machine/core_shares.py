"""Divide the cores of one NUMA node among its workers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Hardware threads of a physical core, ascending.
Core = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Tenant:
    """A worker that needs cores. worker: its index in the plan; threads: compute threads it asked for, None: an even
    share.
    """

    worker: int
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """One worker's CPUs. shared: another worker has one of them too."""

    cpus: tuple[int, ...]
    shared: bool = False


def spare(cores: Sequence[Core], taken: frozenset[int]) -> list[Core]:
    """Returns the cores of which no worker has a hardware thread."""
    return [core for core in cores if taken.isdisjoint(core)]


def share_out(
    cores: Sequence[Core], tenants: Sequence[Tenant], taken: frozenset[int], share: bool
) -> list[Share] | None:
    """Returns a share for each tenant: whole free cores that no other has.

    If cores do not suffice, returns None; with `share`, hardware threads of their own while those last, then CPUs
    in turn.
    """
    found = _apart(spare(cores, taken), tenants)
    if found is None and share:
        found = _together(cores, tenants, taken)
    return found


def _apart(free: Sequence[Core], tenants: Sequence[Tenant]) -> list[Share] | None:
    """Serves first the tenants that asked for a number, then gives the others even shares of the rest."""
    left = list(free)
    given: dict[int, tuple[Core, ...]] = {}
    for tenant in tenants:
        if tenant.threads is not None:
            own = 0
            for own in range(1, len(left) + 1):
                if sum(map(len, left[:own])) >= tenant.threads:
                    break
            else:
                return None
            given[tenant.worker], left = tuple(left[:own]), left[own:]
    even = [tenant for tenant in tenants if tenant.threads is None]
    if len(even) > len(left):
        return None
    bounds = [len(left) * index // len(even) for index in range(len(even) + 1)] if even else []
    for tenant, (first, last) in zip(even, pairwise(bounds), strict=True):
        given[tenant.worker] = tuple(left[first:last])
    return [Share(_flat(given[tenant.worker])) for tenant in tenants]


def _together(cores: Sequence[Core], tenants: Sequence[Tenant], taken: frozenset[int]) -> list[Share]:
    every = [cpu for core in cores for cpu in core]
    free = [cpu for cpu in every if cpu not in taken]
    threads = [(cpu,) for cpu in free]
    apart = _apart(threads, tenants) or _apart(threads, [Tenant(tenant.worker) for tenant in tenants])
    if apart is not None:
        return apart
    turns = [every[index % len(every)] for index in range(len(tenants))]
    return [Share((cpu,), turns.count(cpu) > 1 or cpu in taken) for cpu in turns]


def _flat(cores: Sequence[Core]) -> tuple[int, ...]:
    return tuple(sorted(cpu for core in cores for cpu in core))
