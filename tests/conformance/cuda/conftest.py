"""The CUDA backend on an emulated device: the kernels' own sources, run on the CPU."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator

import numpy as np
import pytest

from colibri.kernels.api import ComputeMode
from colibri.kernels.cuda.backend import CudaBackend
from tests.support.cuda.emulated import DESCENDING, LATE_COPIES, EmulatedDevice


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tensor cores for everything, plain products where a test multiplies matrices."""
    if "backend" in metafunc.fixturenames:
        names = ["mma", "simt"] if metafunc.definition.name in _PRODUCTS else ["mma"]
        metafunc.parametrize("backend", names, indirect=True, scope="session")


#: Tests of products at sizes that a plain device need not repeat are left out.
_PRODUCTS = (
    "test_product",
    "test_expert_units",
    "test_rows_per_expert",
    "test_fp32_rows_with_narrow_weights",
)
#: Architecture and schedule: threads in either order, asynchronous copies at once or as late as allowed.
_DEVICES = {"simt": (75, 0), "mma": (80, LATE_COPIES | DESCENDING)}


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Iterator[CudaBackend]:
    architecture, schedule = _DEVICES[request.param]
    made = CudaBackend(EmulatedDevice(architecture, schedule=schedule), weight_bytes=1 << 28)
    yield made
    made.close()


@pytest.fixture(params=list(ComputeMode), ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> ComputeMode:
    return ComputeMode(request.param)


@pytest.fixture
def rng() -> np.random.Generator:
    """Fresh numbers; COLIBRI_TEST_SEED repeats a failure (pytest shows the line below when a test fails)."""
    seed = int(os.environ.get("COLIBRI_TEST_SEED") or secrets.randbits(64))
    print(f"COLIBRI_TEST_SEED={seed}")
    return np.random.default_rng(seed)
