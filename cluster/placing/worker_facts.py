"""Collect what planning must know of each worker: its host, its speed, its memory. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from colibri.address import UnixAddress, parse_address
from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.placing.planner.problem import Worker
from colibri.placement import WorkerEndpoint


def worker_facts(
    names: Iterable[str],
    endpoints: Mapping[str, WorkerEndpoint],
    places: Mapping[str, WorkerPinning],
    memory: int | None,
) -> dict[str, Worker]:
    """Returns the facts of each worker. Its speed is its compute threads; its host is the address at which it is
    reached, and each process of this machine counts alone.

    memory: bytes of experts that each may hold; None: no limit.
    """
    facts = {}
    for name in names:
        place, endpoint = places.get(name), endpoints.get(name)
        speed = 1.0 if place is None else float(max(1, place.threads))
        facts[name] = Worker(name, "" if endpoint is None else host_of(endpoint.target), speed, memory)
    return facts


def host_of(target: str) -> str:
    """Returns the host in a target; empty: this machine, where each process counts as a host of its own."""
    address = parse_address(target, "target")
    if isinstance(address, UnixAddress) or address.host.startswith(("127.", "localhost", "[::1]")):
        return ""
    return address.host
