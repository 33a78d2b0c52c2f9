"""Every instruction path of this machine with one and two threads, and fresh random numbers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import numpy as np
import pytest

from colibri.kernels.cpu.backend import CpuBackend, supported_isas


@pytest.fixture(scope="session")
def paths() -> Iterator[list[CpuBackend]]:
    """The portable path on one thread, the oracle, comes first."""
    made = [CpuBackend(threads, isa) for isa in reversed(supported_isas()) for threads in (1, 2)]
    yield made
    for backend in made:
        backend.close()


@pytest.fixture
def rng() -> np.random.Generator:
    """COLIBRI_TEST_SEED repeats a failure (pytest shows the line below when a test fails)."""
    seed = int(os.environ.get("COLIBRI_TEST_SEED") or secrets.randbits(64))
    print(f"COLIBRI_TEST_SEED={seed}")
    return np.random.default_rng(seed)
