"""Seats: real locks between real processes, plans of made-up machines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colibri.cluster.ray.options import Seating
from colibri.cluster.ray.seats import seat_folder, seat_places, take_seat
from colibri.errors import Busy, ConfigError, PinningRefused
from tests.support.machine_trees import two_sockets

HOLD = """
import sys, time
from pathlib import Path
from colibri.cluster.ray.seats import take_seat
seat = take_seat(range(int(sys.argv[2])), Path(sys.argv[1]), 0.0)
print(seat.index, flush=True)
time.sleep(60)
"""


def hold(folder: Path, seats: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder), str(seats)], stdout=subprocess.PIPE, text=True
    )


def test_each_process_has_its_own_and_death_frees_it(tmp_path: Path) -> None:
    held = [hold(tmp_path, 2) for _ in range(2)]
    try:
        assert all(process.stdout is not None for process in held)
        assert sorted(int(process.stdout.readline()) for process in held if process.stdout) == [0, 1]
        with pytest.raises(Busy, match="expected a free one of 2 on this host") as caught:
            take_seat(range(2), tmp_path, 0.1)
        assert all(str(process.pid) in caught.value.message for process in held)
        held[0].kill()
        seat = take_seat(range(2), tmp_path, 5.0)
        os.close(seat.lock)
    finally:
        for process in held:
            process.kill()
            process.communicate(timeout=10)


def test_a_certain_seat(tmp_path: Path) -> None:
    seat = take_seat([3], tmp_path, 0.0)
    assert seat.index == 3
    with pytest.raises(Busy):
        take_seat([3], tmp_path, 0.0)
    other = take_seat([2, 3], tmp_path, 0.0)
    assert other.index == 2
    for each in (seat, other):
        os.close(each.lock)


def test_waiting_is_bounded(tmp_path: Path) -> None:
    seat = take_seat([0], tmp_path, 0.0)
    now = [100.0]
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        now[0] += seconds

    with pytest.raises(Busy):
        take_seat([0], tmp_path, 1.0, lambda: now[0], sleep)
    assert sum(naps) == pytest.approx(1.0, abs=0.1)
    os.close(seat.lock)


def test_the_folder_is_this_users_alone(tmp_path: Path) -> None:
    folder = seat_folder(tmp_path)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert seat_folder(tmp_path) == folder
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="seats"):
        seat_folder(tmp_path)


def test_seats_of_a_two_node_machine_share_nothing(tmp_path: Path) -> None:
    topology = two_sockets(tmp_path).discover()
    places = seat_places(topology, 2, Seating(), gpus=False)
    assert {place.numa_node for place in places} == {0, 1}
    assert not set(places[0].cpus) & set(places[1].cpus)
    assert seat_places(topology, 2, Seating(), gpus=False) == places, "the same in every process"
    pinned = seat_places(topology, 2, Seating(numa_nodes=(1,), cpu_threads=(1, 2)), gpus=False)
    assert [place.numa_node for place in pinned] == [1, 1]
    assert [place.threads for place in pinned] == [1, 2]


def test_a_seat_beside_each_gpu(tmp_path: Path) -> None:
    """In the order of the PCI bus, which is that of the numbers that Ray gives."""
    topology = two_sockets(tmp_path).discover()
    places = seat_places(topology, 4, Seating(), gpus=True)
    for place, card in zip(places, topology.gpus, strict=True):
        assert (place.gpu, place.numa_node) == (card.address, card.node)


def test_more_seats_than_cores_are_refused_unless_shared(tmp_path: Path) -> None:
    topology = two_sockets(tmp_path).discover()
    many = len(topology.cpus) + 1
    with pytest.raises(PinningRefused):
        seat_places(topology, many, Seating(), gpus=False)
    shared = seat_places(topology, many, Seating(share=True), gpus=False)
    assert len(shared) == many
    assert any(place.oversubscribed for place in shared)


def test_a_lock_outlives_no_process(tmp_path: Path) -> None:
    process = hold(tmp_path, 1)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate(timeout=10)
    begun = time.monotonic()
    os.close(take_seat([0], tmp_path, 5.0).lock)
    assert time.monotonic() - begun < 5.0
