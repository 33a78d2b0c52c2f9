"""A worker goes out of use for good reasons only, and comes back for better ones."""

from __future__ import annotations

import pytest

from colibri.router_service.health import (
    GOOD_PROBES,
    LONGEST_PROBE_WAIT_S,
    LOST_HEDGES,
    MOST_GOOD_PROBES,
    PROBE_WAIT_S,
    SLOW_ROUNDS,
    SOON_S,
    Health,
    far_above,
)
from colibri.router_service.stats import HealthState


def ejected() -> Health:
    health = Health()
    assert health.eject(0.0, replaceable=True)
    return health


def probes_until_back(health: Health, now: float) -> int:
    for number in range(1, 100):
        if health.probed(True, now):
            return number
    raise AssertionError("it never came back")


def test_a_deadline_or_nonsense_ejects_at_once() -> None:
    health = ejected()
    assert (health.state, health.out) == (HealthState.EJECTED, True)
    assert not health.eject(1.0, replaceable=True)  # counted once


def test_who_cannot_be_replaced_stays() -> None:
    health = Health()
    assert not health.eject(0.0, replaceable=False)
    assert (health.state, health.out) == (HealthState.SUSPECT, False)
    assert not health.judged(slow=False)
    assert health.state is HealthState.HEALTHY


def test_good_probes_in_a_row_readmit() -> None:
    health = ejected()
    for _ in range(GOOD_PROBES - 1):
        assert not health.probed(True, 1.0)
        assert health.state is HealthState.PROBING
        assert health.out
    assert not health.probed(False, 1.0)
    assert health.state is HealthState.EJECTED
    assert probes_until_back(health, 2.0) == GOOD_PROBES
    assert (health.state, health.out) == (HealthState.HEALTHY, False)
    assert not health.probed(True, 3.0)


def test_probes_back_off() -> None:
    health = ejected()
    waits = []
    for _ in range(8):
        waits.append(health.probe_wait_s)
        health.probed(False, 0.0)
    assert waits[:3] == [PROBE_WAIT_S, 2 * PROBE_WAIT_S, 4 * PROBE_WAIT_S]
    assert waits[-1] == LONGEST_PROBE_WAIT_S
    health.probed(True, 0.0)
    assert health.probe_wait_s == PROBE_WAIT_S


def test_who_fails_soon_again_must_prove_more() -> None:
    health = ejected()
    needed = [probes_until_back(health, 0.0)]
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        health.eject(now, replaceable=True)
        needed.append(probes_until_back(health, now))
    assert needed == [3, 6, 12, 24, 24, 24]
    assert needed[-1] == MOST_GOOD_PROBES
    health.eject(5.0 + SOON_S, replaceable=True)
    assert probes_until_back(health, 20.0) == GOOD_PROBES


def test_hedges_lost_in_a_row() -> None:
    health = Health()
    outcomes = [health.lost_hedge() for _ in range(LOST_HEDGES)]
    assert outcomes == [False] * (LOST_HEDGES - 1) + [True]


def test_slow_rounds_in_a_row_with_hysteresis() -> None:
    health = Health()
    assert not health.judged(slow=True)
    assert health.state is HealthState.SUSPECT
    assert not health.judged(slow=False)
    assert health.state is HealthState.SUSPECT  # one good round is not enough
    assert not health.judged(slow=False)
    assert health.state is HealthState.HEALTHY
    assert [health.judged(slow=True) for _ in range(SLOW_ROUNDS)] == [False] * (SLOW_ROUNDS - 1) + [True]


@pytest.mark.parametrize(
    ("own", "others", "slow"),
    [
        (1.0, [], False),  # nobody to compare with
        (0.050, [0.001, 0.001], True),
        (0.050, [0.020, 0.020], False),  # not far enough
        (0.004, [0.0001, 0.0002], False),  # far, but by nothing
        (0.050, [0.001, 0.045, 0.048], False),  # most are slow: it is the load
        (0.050, [0.001, 0.001, 0.048], True),
    ],
)
def test_far_above_the_others(own: float, others: list[float], slow: bool) -> None:
    assert far_above(own, others) is slow
