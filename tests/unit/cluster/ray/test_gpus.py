"""How many workers a Ray cluster has GPUs for: counted from what Ray says of its nodes, once that stands still."""

from __future__ import annotations

import pytest

from colibri.cluster.ray.gpus import SETTLED_S, count_gpu_workers, gpu_seats
from colibri.cluster.ray.options import RayOptions, Spread
from colibri.cluster.ray.session import Host, NodeView
from colibri.errors import DeadlineExpired


def node(name: str, seats: int, gpus: int) -> NodeView:
    return NodeView(name, Host(name, f"10.0.0.{name}"), seats, gpus)


HEAD, ONE, FOUR = node("1", 1, 0), node("2", 1, 1), node("3", 4, 8)


def test_a_worker_needs_a_seat_and_a_gpu() -> None:
    nodes = [HEAD, ONE, FOUR]
    assert gpu_seats(nodes, Spread.HOSTS) == 2
    assert gpu_seats(nodes, Spread.ANY) == 5
    assert gpu_seats([], Spread.ANY) == 0


class Clock:
    """Stands still but for what is slept."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_hosts_that_come_one_after_another_all_count() -> None:
    clock, said = Clock(), list[str]()
    joined = [(0.0, HEAD), (20.0, ONE), (20.0 + SETTLED_S - 1.0, FOUR)]
    count = count_gpu_workers(
        RayOptions(spread=Spread.ANY),
        lambda: [view for at, view in joined if clock.now >= at],
        said.append,
        clock=clock,
        sleep=clock.sleep,
    )
    assert count == 5
    assert clock.now == pytest.approx(20.0 + 2 * SETTLED_S - 1.0, abs=1.0)
    assert said == ["workers: 5, one for each colibri_worker with a GPU (--workers says another number)"]


def test_no_gpu_in_time_is_told() -> None:
    clock = Clock()
    with pytest.raises(
        DeadlineExpired, match=r"no GPU within 30 s: 1 worker \(w0\) need one colibri_worker and 1 GPU each"
    ):
        count_gpu_workers(RayOptions(place_s=30.0), lambda: [HEAD], print, clock=clock, sleep=clock.sleep)
    assert clock.now == pytest.approx(30.0, abs=1.0)
