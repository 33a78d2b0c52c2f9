"""A scale that is not finite is found wherever it stands, and nothing else is taken for one."""

from __future__ import annotations

import os
import re
import secrets

import numpy as np
import pytest

from colibri.errors import CheckpointError
from colibri.kernels.api import PackedLinear
from colibri.kernels.factory import make_backend
from colibri.kernels.reference import quant_packing
from colibri.models.pack_scales import check_expert_scales, check_linear_scales

BACKEND = make_backend("reference")


@pytest.fixture
def rng() -> np.random.Generator:
    """COLIBRI_TEST_SEED repeats a failure (pytest shows the line below when a test fails)."""
    seed = int(os.environ.get("COLIBRI_TEST_SEED") or secrets.randbits(64))
    print(f"COLIBRI_TEST_SEED={seed}")
    return np.random.default_rng(seed)


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (31, 32), (33, 96), (70, 200), (32, 129)])
def test_any_scale_of_a_matrix(rng: np.random.Generator, dtype: str, group: int, n: int, k: int) -> None:
    """Sizes that the group does not divide among them: its last one is shorter."""
    made = BACKEND.quantize_linear(rng.standard_normal((n, k)).astype(np.float32), dtype, group)
    check_linear_scales(made, "here")
    for _ in range(8):
        matrix = quant_packing.unpack(made.data, dtype, n, k, group, "data")
        row, at = int(rng.integers(n)), int(rng.integers(matrix.scales.shape[1]))
        bits = int(rng.choice([0x7F80, 0xFF80, 0x7F81, 0xFFFF]))
        matrix.scales[row, at] = bits
        spoilt = PackedLinear(dtype, n, k, quant_packing.pack(matrix, dtype, group), group)
        message = re.escape(f"here: scale [{row}, {at}]: expected a finite value, got ")
        with pytest.raises(CheckpointError, match=rf"{message}(NaN|Inf) \(0x{bits:04x}\)"):
            check_linear_scales(spoilt, "here")


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_numbers_of_any_bits_are_no_scales(rng: np.random.Generator, dtype: str) -> None:
    """All numbers at their largest and smallest, whose bytes make up NaN's bits."""
    weight = rng.choice([-1.0, 1.0], (64, 192)).astype(np.float32)
    check_linear_scales(BACKEND.quantize_linear(weight, dtype, 64), "here")
    gate, up, down = (
        rng.choice([-1.0, 1.0], shape).astype(np.float32) for shape in ((40, 72), (40, 72), (72, 40))
    )
    check_expert_scales(BACKEND.quantize_expert(gate, up, down, dtype, 32), "here")


def test_plain_matrices_have_none(rng: np.random.Generator) -> None:
    check_linear_scales(PackedLinear("bf16", 32, 2, np.full(128, 255, np.uint8)), "here")
