"""Fixtures of the kernel suites: every backend and instruction path here, both modes, fresh random numbers."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode
from colibri.kernels.cpu.backend import CpuBackend, supported_isas
from colibri.kernels.reference import ReferenceBackend

ISAS = tuple(supported_isas())


#: Parameters of fixtures. `make test-fast` tries only the path that this machine computes with.
PATHS = [pytest.param(isa, marks=[] if isa == ISAS[0] else pytest.mark.slow, id=isa) for isa in ISAS]
_CPUS = [pytest.param(f"cpu-{path.id}", marks=path.marks) for path in PATHS]


@pytest.fixture(scope="session", params=["reference", *_CPUS])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    made: Backend
    if request.param == "reference":
        made = ReferenceBackend()
    else:
        made = CpuBackend(threads=2, isa=request.param.removeprefix("cpu-"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def cpu_backends() -> Iterator[list[Backend]]:
    """Every instruction path with 1 and 2 threads."""
    made = [CpuBackend(threads=threads, isa=isa) for isa in ISAS for threads in (1, 2)]
    yield list(made)
    for each in made:
        each.close()


@pytest.fixture(params=list(ComputeMode), ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> ComputeMode:
    return ComputeMode(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh numbers; COLIBRI_TEST_SEED repeats a failure (pytest shows the line below when a test fails)."""
    seed = int(os.environ.get("COLIBRI_TEST_SEED") or secrets.randbits(64))
    print(f"COLIBRI_TEST_SEED={seed}")
    return np.random.default_rng(seed)
