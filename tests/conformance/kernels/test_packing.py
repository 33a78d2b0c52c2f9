"""The packed layout, version 1: the same bytes from every backend, as docs/numerics.md lays them out."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.kernels.api import Backend, ComputeMode

from .support import SIZES, Array, assert_same, bf16, stored

DTYPES = ("bf16", "fp16", "fp32")


def panels(weight: Array) -> Array:
    """Written element by element from the document's words."""
    n, k = weight.shape
    n_up, k_up = -(-n // 32) * 32, -(-k // 2) * 2
    out = np.zeros(n_up * k_up, dtype=weight.dtype)
    for row in range(n):
        for column in range(k):
            if weight.dtype == np.float32:
                at = (row // 32 * k_up + column) * 32 + row % 32
            else:
                at = ((row // 32 * (k_up // 2) + column // 2) * 32 + row % 32) * 2 + column % 2
            out[at] = weight[row, column]
    return out.view(np.uint8)


@pytest.mark.parametrize("dtype", DTYPES)
def test_linear_layout(backend: Backend, rng: np.random.Generator, dtype: str) -> None:
    for n in SIZES:
        for k in (*SIZES, 64):
            weight = stored(rng.standard_normal((n, k)), dtype)
            packed = backend.pack_linear(weight, ComputeMode.FP32)
            assert (packed.dtype, packed.n, packed.k) == (dtype, n, k)
            assert packed.data.ctypes.data % 64 == 0
            assert_same(packed.data, panels(weight), f"n={n} k={k}")


@pytest.mark.parametrize("dtype", DTYPES)
def test_bf16_mode_rounds_to_bf16(backend: Backend, rng: np.random.Generator, dtype: str) -> None:
    weight = stored(rng.standard_normal((33, 17)), dtype)
    packed = backend.pack_linear(weight, ComputeMode.BF16)
    expected = weight if dtype == "bf16" else bf16(weight.astype(np.float32))
    assert packed.dtype == "bf16"
    assert_same(packed.data, panels(expected))


def test_bf16_rounding_of_every_kind(backend: Backend) -> None:
    """Ties to even, subnormals to a signed zero, NaN kept quiet, overflow to Inf (as vcvtneps2bf16)."""
    cases = {
        0x3F800000: 0x3F80,  # 1
        0x3F808000: 0x3F80,  # tie, even below
        0x3F818000: 0x3F82,  # tie, even above
        0x3F808001: 0x3F81,
        0x00800000: 0x0080,  # smallest normal
        0x007FFFFF: 0x0000,  # subnormal that would round up to a normal
        0x80000001: 0x8000,
        0x7F7FFFFF: 0x7F80,  # rounds to Inf
        0x7F800000: 0x7F80,
        0xFF800000: 0xFF80,
        0x7F800001: 0x7FC0,  # signalling NaN with its payload below bf16
        0xFFC12345: 0xFFC1,
    }
    weight = np.array(list(cases), dtype=np.uint32).view(np.float32).reshape(1, -1)
    packed = backend.pack_linear(weight, ComputeMode.BF16)
    assert_same(packed.data, panels(np.array([list(cases.values())], dtype=np.uint16)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_expert_layout(backend: Backend, rng: np.random.Generator, dtype: str) -> None:
    for hidden, ffn in ((1, 1), (2, 15), (16, 16), (17, 17), (31, 33), (33, 31), (64, 48)):
        gate, up = (stored(rng.standard_normal((ffn, hidden)), dtype) for _ in range(2))
        down = stored(rng.standard_normal((hidden, ffn)), dtype)
        expert = backend.pack_expert(gate, up, down, ComputeMode.FP32)
        assert (expert.dtype, expert.hidden, expert.ffn) == (dtype, hidden, ffn)
        assert expert.data.ctypes.data % 64 == 0
        blocks = -(-ffn // 16)
        gate_up = np.zeros((blocks * 32, hidden), dtype=gate.dtype)
        wide_down = np.zeros((hidden, blocks * 16), dtype=gate.dtype)
        for column in range(ffn):
            gate_up[column // 16 * 32 + column % 16] = gate[column]
            gate_up[column // 16 * 32 + 16 + column % 16] = up[column]
            wide_down[:, column] = down[:, column]
        first, second = panels(gate_up), panels(wide_down)
        assert len(first) % 64 == 0
        assert_same(expert.data, np.concatenate([first, second]), f"hidden={hidden} ffn={ffn}")


def test_embed_reads_rows_back(backend: Backend, rng: np.random.Generator) -> None:
    for dtype in DTYPES:
        for vocabulary, hidden in ((1, 1), (33, 17), (70, 64), (128, 33)):
            table = stored(rng.standard_normal((vocabulary, hidden)), dtype)
            packed = backend.pack_linear(table, ComputeMode.FP32)
            for rows in (0, *SIZES, 300):
                ids = rng.integers(0, vocabulary, rows).astype(np.uint32)
                wide = table[ids]
                if dtype == "bf16":
                    wide = (wide.astype(np.uint32) << 16).view(np.float32)
                assert_same(backend.embed(packed, ids), wide.astype(np.float32), dtype)
