"""A scale that is not finite is found wherever it stands, and nothing else is taken for one."""

from __future__ import annotations

import os
import re
import secrets

import numpy as np
import pytest

from colibri.errors import CheckpointError
from colibri.kernels import _native
from colibri.kernels.api import PackedExpert, PackedLinear
from colibri.kernels.factory import make_backend
from colibri.kernels.layout import quant_packing
from colibri.models.packs.scales import ScaleLook

BACKEND = make_backend("reference")


def check(content: PackedLinear | PackedExpert, where: str, step: int = 5000) -> None:
    """As if the bytes came `step` at a time, panels in pieces."""
    look = ScaleLook(content)
    for come in range(0, content.data.nbytes, step):
        look.upto(come)
    look.upto(content.data.nbytes + 100)  # whole pages may come
    look.check(where)


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
    check(made, "here")
    for _ in range(8):
        matrix = quant_packing.unpack(made.data, dtype, n, k, group, "data")
        row, at = int(rng.integers(n)), int(rng.integers(matrix.scales.shape[1]))
        bits = int(rng.choice([0x7F80, 0xFF80, 0x7F81, 0xFFFF]))
        matrix.scales[row, at] = bits
        spoilt = PackedLinear(dtype, n, k, quant_packing.pack(matrix, dtype, group), group)
        message = re.escape(f"here: scale [{row}, {at}]: expected a finite value, got ")
        with pytest.raises(CheckpointError, match=rf"{message}(NaN|Inf) \(0x{bits:04x}\)"):
            check(spoilt, "here", int(rng.integers(1, 20000)))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_numbers_of_any_bits_are_no_scales(rng: np.random.Generator, dtype: str) -> None:
    """All numbers at their largest and smallest, whose bytes make up NaN's bits."""
    weight = rng.choice([-1.0, 1.0], (64, 192)).astype(np.float32)
    check(BACKEND.quantize_linear(weight, dtype, 64), "here")
    gate, up, down = (
        rng.choice([-1.0, 1.0], shape).astype(np.float32) for shape in ((40, 72), (40, 72), (72, 40))
    )
    check(BACKEND.quantize_expert(gate, up, down, dtype, 32), "here")


def test_plain_matrices_have_none(rng: np.random.Generator) -> None:
    check(PackedLinear("bf16", 32, 2, np.full(128, 255, np.uint8)), "here")


@pytest.mark.parametrize("name", ["gate", "up", "down"])
def test_any_scale_of_an_expert(rng: np.random.Generator, name: str) -> None:
    shapes = {"gate": (40, 72), "up": (40, 72), "down": (72, 40)}
    matrices = {at: rng.standard_normal(shape).astype(np.float32) for at, shape in shapes.items()}
    row, column = (int(rng.integers(extent)) for extent in shapes[name])
    before = BACKEND.quantize_expert(matrices["gate"], matrices["up"], matrices["down"], "int8", 32)
    matrices[name][row] *= 2  # another scale, where the spoilt one goes
    after = BACKEND.quantize_expert(matrices["gate"], matrices["up"], matrices["down"], "int8", 32)
    group = column // 32
    differs = np.flatnonzero(before.data.view(np.uint16) != after.data.view(np.uint16))
    scales = [
        at for at in differs if after.data.view(np.uint16)[at] - before.data.view(np.uint16)[at] == 0x80
    ]
    after.data.view(np.uint16)[scales[group]] = 0xFF80
    with pytest.raises(
        CheckpointError, match=re.escape(f"here: {name}: scale [{row}, {group}]: expected a finite")
    ):
        check(after, "here")


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"n": 33}, r"data: expected uint8 \[8704\]"),
        ({"k": 0}, "k: expected 1 to 2"),
        ({"group": 7}, "group: expected"),
        ({"dtype": "bf16"}, "expected 'int8' or 'int4'"),
    ],
)
def test_sizes_that_lie(wrong: dict[str, object], text: str) -> None:
    right = {
        "data": np.zeros(32 * 128 + 64 * 4, np.uint8),
        "dtype": "int8",
        "n": 32,
        "k": 128,
        "group": 32,
    }
    with pytest.raises(ValueError, match=text):
        _native.first_not_finite_scale(**{**right, **wrong})  # type: ignore[arg-type]
