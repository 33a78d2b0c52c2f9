from __future__ import annotations

import pytest

from colibri.deadline import Deadline

NOW = 1000.0


def clock() -> float:
    return NOW


def test_with_a_deadline() -> None:
    deadline = Deadline.after(2.5, clock)
    assert deadline.at == 1002.5
    assert deadline.remaining(clock) == 2.5
    assert deadline.remaining_us(clock) == 2_500_000
    assert not deadline.expired(clock)
    assert (deadline.bound(1.0, clock), deadline.bound(30.0, clock)) == (1.0, 2.5)


def test_without() -> None:
    never = Deadline.after(None, clock)
    assert never == Deadline()
    assert never.remaining(clock) is None
    assert never.remaining_us(clock) == 0
    assert not never.expired(clock)
    assert never.bound(30.0, clock) == 30.0


@pytest.mark.parametrize("at", [999.0, 1000.0])
def test_over(at: float) -> None:
    deadline = Deadline(at)
    assert deadline.expired(clock)
    assert deadline.remaining(clock) == 0.0
    assert deadline.bound(30.0, clock) == 0.0
    # 0 would say on the wire that there is none.
    assert deadline.remaining_us(clock) == 1


def test_from_the_wire() -> None:
    assert Deadline.from_remaining_us(0, NOW) == Deadline()
    assert Deadline.from_remaining_us(1_500_000, NOW) == Deadline(1001.5)


def test_the_earlier_of_two() -> None:
    early, late, never = Deadline(1.0), Deadline(2.0), Deadline()
    assert early.earlier(late) == late.earlier(early) == early
    assert early.earlier(never) == never.earlier(early) == early
    assert never.earlier(never) == never
