"""Threads on shared structures: seconds here, minutes in `make attacks`."""

from __future__ import annotations

import os

import pytest

from tests.attacks.thread_stress import CASES, run
from tests.support.tries import Tries


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_structure_holds(case: object, tries: Tries) -> None:
    for name, count in run(0.3, [case]).items():  # type: ignore[list-item]
        assert count > 0
        tries(f"threads: {name}", count)


@pytest.mark.attacks
def test_for_minutes(tries: Tries) -> None:
    """COLIBRI_TEST_STRESS_S: how long, seconds."""
    for name, count in run(float(os.environ.get("COLIBRI_TEST_STRESS_S", "600"))).items():
        tries(f"threads: {name}", count)
