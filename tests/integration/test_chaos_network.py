"""Networks of a chaos run on the real kernel: they carry, cut, delay, lose, and leave nothing behind."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from colibri.bench.chaos.network.base import Network
from colibri.bench.chaos.network.bridged import BridgedNetwork
from colibri.bench.chaos.network.build import open_network, why_not
from colibri.bench.chaos.network.commands import run
from colibri.bench.chaos.network.relayed import RelayedNetwork
from colibri.bench.chaos.plan import LinkQuality
from colibri.errors import ConfigError

WHY_NOT = why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "network namespaces work here")

WAIT_S = 20.0
ECHO = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("ready", flush=True)
while True:
    link, _ = server.accept()
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := link.recv(1 << 16):
        link.sendall(data)
"""


def bridged() -> Network:
    return open_network(["w0", "w1"], LinkQuality(), shaped=False)


def relayed() -> Network:
    """By the relay, whatever else the kernel has."""
    made = open_network(["w0", "w1"], LinkQuality(), shaped=False)
    layout = made.layout
    made.close()
    return RelayedNetwork(layout)


@pytest.fixture(params=[bridged, relayed])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    make: Callable[[], Network] = request.param
    before = names()
    with make() as made:
        yield made
    assert names() == before


def names() -> set[str]:
    """Devices and namespaces of ours."""
    found = run("ip", "-o", "link").split() + run("ip", "netns").split()
    return {word.rstrip(":").partition("@")[0] for word in found if word.startswith(("cb", "colibri-"))}


@contextlib.contextmanager
def echo(network: Network, worker: str) -> Iterator[socket.socket]:
    """A connection to somebody inside that namespace who sends everything back."""
    place = network.layout.place(worker)
    command = ["ip", "netns", "exec", place.namespace, sys.executable, "-c", ECHO, place.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with socket.create_connection((place.address, 5000), WAIT_S) as link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield link
    finally:
        process.kill()
        process.communicate()


def ask(link: socket.socket, data: bytes, timeout_s: float = WAIT_S) -> float:
    """Seconds until all of it was back. Raises TimeoutError."""
    link.settimeout(timeout_s)
    begun = time.monotonic()
    link.sendall(data)
    left = data
    while left:
        got = link.recv(1 << 16)
        assert left.startswith(got)
        assert got
        left = left[len(got) :]
    return time.monotonic() - begun


def test_it_carries_every_size(network: Network) -> None:
    with echo(network, "w0") as first, echo(network, "w1") as second:
        for size in (1, 1400, 20_000, 3_000_000):
            for link in (first, second):
                ask(link, bytes(range(256)) * (size // 256) + b"x" * (size % 256))


def test_a_cut_link_is_silent_and_comes_back(network: Network) -> None:
    with echo(network, "w0") as link, echo(network, "w1") as other:
        ask(link, b"before")
        network.set_up("w0", False)
        with pytest.raises(TimeoutError):
            ask(link, b"cut", 0.5)
        ask(other, b"not mine")
        network.set_up("w0", True)
        link.settimeout(WAIT_S)
        assert link.recv(3) == b"cut"  # TCP sent it again


def test_links_are_made_worse_and_better() -> None:
    with (
        open_network(["w0", "w1"], LinkQuality(), shaped=True) as network,
        echo(network, "w0") as link,
        echo(network, "w1") as other,
    ):
        ask(link, b"warm")
        network.shape("w0", LinkQuality(delay_s=0.05))
        assert ask(link, b"late") >= 0.1
        network.shape("w0", LinkQuality(rate_bits=8e6))
        assert ask(link, bytes(400_000)) >= 0.4
        network.shape("w0", LinkQuality(loss=1.0))
        with pytest.raises(TimeoutError):
            ask(link, b"lost", 0.5)
        ask(other, b"not mine")
        network.shape("w0", LinkQuality())
        link.settimeout(WAIT_S)
        assert link.recv(4) == b"lost"


def test_two_networks_at_once() -> None:
    with bridged() as one, bridged() as two:
        assert one.layout.gateway != two.layout.gateway
        with echo(one, "w0") as first, echo(two, "w0") as second:
            ask(first, b"one")
            ask(second, b"two")


def test_what_fails_half_way_is_removed() -> None:
    before = names()
    with bridged() as network:
        with pytest.raises(Exception, match="File exists"):
            BridgedNetwork(network.layout)
        with pytest.raises(ConfigError, match="w0, w1"):
            network.set_up("w7", False)
    assert names() == before
