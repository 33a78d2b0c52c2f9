"""When the relay lets a packet go: delay, rate, loss, cut links."""

from __future__ import annotations

import random
import socket

import pytest

from colibri.bench.chaos.network.bridged import netem
from colibri.bench.chaos.network.relay import HEADER_BYTES, Port, Relay
from colibri.bench.chaos.plan import LinkQuality

A, B, C = (socket.inet_aton(f"10.0.0.{number}") for number in (1, 2, 3))


def packet(to: bytes, size: int = 100) -> bytes:
    """size: of the IP packet."""
    return bytes(HEADER_BYTES + 16) + to + bytes(size - 20)


def relay(**changes: float | bool) -> tuple[Relay, Port, Port]:
    """changes: of B's port."""
    ports = {A: Port(1), B: Port(2), C: Port(3)}
    made = Relay(ports, random.Random(5))
    made.configure(B, changes)
    return made, ports[A], ports[B]


def due_times(made: Relay) -> list[float]:
    found = []
    while (due := made.next_due) is not None:
        assert made.release(due - 1e-9) == []
        found.append(due)
        assert len(made.release(due)) == 1
    return found


def test_a_packet_goes_to_the_port_of_its_address_at_once() -> None:
    made, a, _ = relay()
    made.accept(a, packet(B), 7.0)
    made.accept(a, packet(C), 7.0)
    assert made.release(7.0) == [(2, packet(B)), (3, packet(C))]
    assert made.next_due is None


def test_delay_is_of_the_workers_link_both_ways() -> None:
    made, a, b = relay(delay_s=0.002)
    made.accept(a, packet(B), 0.0)
    made.accept(b, packet(A), 1.0)
    assert due_times(made) == pytest.approx([0.002, 1.002])


def test_a_rate_lets_packets_leave_one_after_another() -> None:
    made, a, _ = relay(rate_bits=8e6)  # a byte per microsecond
    for _ in range(3):
        made.accept(a, packet(B, 52 + 1000), 0.0)
    assert due_times(made) == pytest.approx([0.00109, 0.00218, 0.00327])


def test_a_large_packet_counts_as_the_pieces_it_is_cut_into() -> None:
    made, a, _ = relay(rate_bits=8e6)
    made.accept(a, packet(B, 52 + 4 * 1448), 0.0)
    assert due_times(made) == pytest.approx([4 * (1448 + 90) * 1e-6])


def test_what_does_not_fit_the_buffer_is_lost() -> None:
    made, a, _ = relay(rate_bits=8e6)
    for _ in range(1000):
        made.accept(a, packet(B, 52 + 1000), 0.0)
    assert len(due_times(made)) == pytest.approx(183, abs=1)  # 0.2 s of it
    assert made.lost == pytest.approx(817, abs=1)


def test_a_cut_link_passes_nothing_either_way() -> None:
    made, a, b = relay(up=False)
    made.accept(a, packet(B), 0.0)
    made.accept(b, packet(A), 0.0)
    made.accept(a, packet(C), 0.0)
    assert due_times(made) == [0.0]
    made.configure(B, {"up": True})
    made.accept(a, packet(B), 1.0)
    assert due_times(made) == [1.0]


def test_loss_is_a_share() -> None:
    made, a, _ = relay(loss=0.25)
    for _ in range(2000):
        made.accept(a, packet(B), 0.0)
    assert 400 < made.lost < 600


def test_strangers_and_stumps_are_dropped() -> None:
    made, a, _ = relay()
    made.accept(a, packet(socket.inet_aton("8.8.8.8")), 0.0)
    made.accept(a, b"short", 0.0)
    assert made.lost == 2
    assert made.next_due is None


def test_netem_words() -> None:
    assert netem(LinkQuality(0.0001, 0.01, 1e9)) == [
        "netem", "limit", "100000", "delay", "100us", "loss", "1%", "rate", "1000000000bit",
    ]  # fmt: skip
    assert netem(LinkQuality()) == ["netem", "limit", "100000", "delay", "0us"]
