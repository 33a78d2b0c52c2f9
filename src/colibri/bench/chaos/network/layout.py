"""Names and addresses of one network: a pure function of the workers and of what is taken already."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from colibri.errors import ConfigError

#: A /24 each, in the range for private networks that few use.
_SUBNETS = [
    ipaddress.ip_network(f"10.{second}.{third}.0/24") for second in (213, 214) for third in range(256)
]
_FIRST_HOST = 10
#: Interface names may have 15 characters.
MAX_TAG = 4


@dataclass(frozen=True, slots=True)
class Place:
    """Of one worker. device: of the coordinator's side, where there is one for each worker."""

    worker: str
    namespace: str
    device: str
    address: str


@dataclass(frozen=True, slots=True)
class Layout:
    """hub: bridge or device of the coordinator's side, with `gateway` as its address; prefix: bits of both."""

    hub: str
    gateway: str
    prefix: int
    places: tuple[Place, ...]

    def place(self, worker: str) -> Place:
        """Raises ConfigError for a worker that has none."""
        for place in self.places:
            if place.worker == worker:
                return place
        raise ConfigError("worker", "one of " + ", ".join(p.worker for p in self.places), worker)


def lay_out(tag: str, workers: Sequence[str], taken: Iterable[str]) -> Layout:
    """tag: tells networks of several runs apart. taken: networks that the machine knows, as `ip route` and
    `ip addr` write them (what is no IPv4 network is passed over). Raises ConfigError."""
    if not 1 <= len(tag) <= MAX_TAG or not tag.isalnum():
        raise ConfigError("network tag", f"1 to {MAX_TAG} letters and digits", tag)
    if not 1 <= len(workers) <= 200:
        raise ConfigError("workers", "1 to 200 of them in a network", len(workers))
    known = [network for text in taken if (network := _network(text)) is not None]
    for subnet in _SUBNETS:
        if not any(subnet.overlaps(network) for network in known):
            break
    else:
        raise ConfigError("network", "a free /24 in 10.213.0.0 to 10.214.255.0", "none")
    hosts = [str(subnet.network_address + _FIRST_HOST + index) for index in range(len(workers))]
    return Layout(
        hub=f"cb{tag}",
        gateway=str(subnet.network_address + 1),
        prefix=subnet.prefixlen,
        places=tuple(
            Place(worker, f"colibri-{tag}-{worker}", f"cb{tag}p{index}", hosts[index])
            for index, worker in enumerate(workers)
        ),
    )


def _network(text: str) -> ipaddress.IPv4Network | None:
    try:
        return ipaddress.IPv4Network(text, strict=False)
    except ValueError:
        return None
