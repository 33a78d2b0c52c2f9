"""The matrix product: the same bits on every instruction path, for any threads and number of rows, and those of
docs/numerics.md."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.kernels.api import ComputeMode, PackedLinear
from colibri.kernels.cpu.backend import CpuBackend

from . import exact
from .data import KINDS, PAIRINGS, Array, assert_same_bits, relative_rms, stored, values, widened

ROWS = (0, 1, 2, 3, 4, 5, 11, 12, 13, 14, 15, 16, 17, 24, 25, 31, 33, 97)
#: (n, k): one column, ragged and whole panels, odd K, K one below and above a K block of every weight type.
SHAPES = ((1, 1), (8, 64), (31, 15), (32, 16), (33, 31), (64, 130), (95, 33), (17, 1023), (40, 1025))


@pytest.mark.parametrize(("weights", "rows"), PAIRINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_paths_threads_and_rows_agree(
    paths: list[CpuBackend], rng: np.random.Generator, weights: str, rows: str, kind: str
) -> None:
    n, k = SHAPES[int(rng.integers(len(SHAPES)))]
    x = stored(values(rng, (max(ROWS), k), kind), rows)
    w = stored(values(rng, (n, k), kind), weights)
    whole: Array | None = None
    for backend in paths:
        packed = backend.pack_linear(w, ComputeMode.FP32)
        got = backend.linear(x, packed)
        whole = got if whole is None else whole
        what = f"{backend.isa} x {backend.threads}, n={n} k={k}"
        assert_same_bits(got, whole, what)
        for count in ROWS:
            first = int(rng.integers(max(ROWS) - count + 1))
            assert_same_bits(
                backend.linear(x[first : first + count], packed),
                whole[first : first + count],
                f"{what} rows={count}",
            )


@pytest.mark.parametrize(("weights", "rows"), PAIRINGS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_shapes_agree_and_are_close(
    paths: list[CpuBackend], rng: np.random.Generator, weights: str, rows: str, n: int, k: int
) -> None:
    x, w = stored(values(rng, (17, k), "normal"), rows), stored(values(rng, (n, k), "normal"), weights)
    packed = paths[0].pack_linear(w, ComputeMode.FP32)
    first = paths[0].linear(x, packed)
    for backend in paths[1:]:
        assert_same_bits(backend.linear(x, packed), first, f"{backend.isa} x {backend.threads}")
    expected = widened(x).astype(np.float64) @ widened(w).astype(np.float64).T
    # Relative to the size of the products: a single output may cancel to nothing.
    scale = np.sqrt((widened(x).astype(np.float64) ** 2) @ (widened(w).astype(np.float64) ** 2).T)
    assert float(np.sqrt(np.mean(((first - expected) / scale) ** 2))) <= 1e-5


@pytest.mark.parametrize(("weights", "rows"), PAIRINGS)
def test_many_rows_and_long_k(
    paths: list[CpuBackend], rng: np.random.Generator, weights: str, rows: str
) -> None:
    """Several K blocks with exact spills, prefetch rules for 1, 2-8 and more tiles; not on the slow portable path."""
    n, k = 70, 4611
    x, w = stored(values(rng, (203, k), "wide"), rows), stored(values(rng, (n, k), "wide"), weights)
    fast = [b for b in paths if b.isa != "portable"] or paths
    packed = fast[0].pack_linear(w, ComputeMode.FP32)
    first = fast[0].linear(x, packed)
    for backend in fast[1:]:
        assert_same_bits(backend.linear(x, packed), first, f"{backend.isa} x {backend.threads}")
    for row in (0, 1, 101, 202):
        alone = [b.linear(x[row : row + 1], packed) for b in paths]
        for backend, got in zip(paths, alone, strict=True):
            assert_same_bits(got, first[row : row + 1], f"row {row} alone on {backend.isa}")
    expected = widened(x).astype(np.float64) @ widened(w).astype(np.float64).T
    assert relative_rms(first, expected) <= 1e-5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("weights", "rows"), PAIRINGS)
def test_exact_arithmetic_gives_the_same_bits(
    paths: list[CpuBackend], rng: np.random.Generator, weights: str, rows: str, kind: str
) -> None:
    x, w = stored(values(rng, (3, 19), kind), rows), stored(values(rng, (4, 19), kind), weights)
    expected = exact.matrix(widened(x), widened(w))
    for backend in paths:
        got = backend.linear(x, backend.pack_linear(w, ComputeMode.FP32))
        assert_same_bits(got, expected, f"{backend.isa} x {backend.threads}")


def test_the_order_within_a_pair_counts(rng: np.random.Generator) -> None:
    """The oracle would not notice a wrong order if this data did not."""
    rows = [values(rng, (64,), "wide") for _ in range(40)]
    w = values(rng, (64,), "wide")
    assert any(exact.dot(x, w) != exact.dot(x, w, even_first=True) for x in rows)


def test_subnormals_are_zero(paths: list[CpuBackend]) -> None:
    """Operands (DAZ) and results (FTZ); without either these would not be zero."""
    smallest = np.float32(2.0**-126)
    cases = [
        (smallest / 2, np.float32(2.0**20), 0.0),  # subnormal operand
        (smallest, np.float32(0.5), 0.0),  # subnormal product
        (smallest, np.float32(1.0), float(smallest)),
        (np.float32(2.0**-100), np.float32(2.0**-27), 0.0),
        # Rounds up to 2^-126: tininess is judged after rounding.
        (np.float32(1 - 2.0**-24), smallest * np.float32(1 + 2.0**-23), float(smallest)),
    ]
    for a, b, expected in cases:
        assert exact.fma(float(a), float(b), 0.0) == expected
        for backend in paths:
            got = backend.linear(np.array([[a]]), backend.pack_linear(np.array([[b]]), ComputeMode.FP32))
            assert got.tolist() == [[expected]], f"{a} * {b} on {backend.isa}"


def test_fma_rounds_once(paths: list[CpuBackend], rng: np.random.Generator) -> None:
    """Sums within 2^-40 of the middle between two fp32: rounding through double first would take the wrong one."""
    x = np.empty((200, 2), np.float32)
    sign = rng.choice([-1.0, 1.0], (200, 2))
    x[:, 1] = sign[:, 1] * (1 + rng.integers(2**23, size=200) * 2.0**-23)  # the odd element is added first
    x[:, 0] = sign[:, 0] * 2.0**-12 * (1 + 2.0**-20)
    w = np.array([[2.0**-12 * (1 - 2.0**-20), 1], [2.0**-12 * (1 - 2.0**-20 + 2.0**-23), 1]], np.float32)
    expected = exact.matrix(x, w)
    twice = (x[:, :1].astype(np.float64) * w[:, 0] + x[:, 1:]).astype(np.float32)
    assert (twice != expected).any()
    for backend in paths:
        got = backend.linear(x, backend.pack_linear(w, ComputeMode.FP32))
        assert_same_bits(got, expected, backend.isa)


def test_callers_float_control_is_restored(paths: list[CpuBackend]) -> None:
    subnormal = np.float32(2.0**-130)
    for backend in paths:
        one = np.ones((1, 1), np.float32)
        backend.linear(one, backend.pack_linear(one, ComputeMode.FP32))
        assert np.float32(subnormal * np.float32(2.0)) == np.float32(2.0**-129)


def test_every_bf16_and_fp16_weight(paths: list[CpuBackend]) -> None:
    """Widening is exact for all finite patterns, subnormals of fp16 included; those of bf16 are flushed."""
    patterns = np.arange(2**16, dtype=np.uint16)
    for w in (patterns.view(np.float16), patterns):
        wide = widened(w)
        wide = np.where(np.abs(wide) < 2.0**-126, np.float32(0), wide)
        keep = np.isfinite(wide)
        for backend in paths:
            packed = backend.pack_linear(np.ascontiguousarray(w[keep]).reshape(-1, 1), ComputeMode.FP32)
            got = backend.linear(np.ones((1, 1), np.float32), packed)
            assert np.array_equal(got[0], wide[keep]), f"{w.dtype} on {backend.isa}"


def test_unaligned_and_read_only_inputs(paths: list[CpuBackend], rng: np.random.Generator) -> None:
    """Weights straight from a mapped file may start at any byte."""
    w = values(rng, (33, 37), "normal")
    raw = np.zeros(w.nbytes + 3, np.uint8)
    raw[3:] = w.reshape(-1).view(np.uint8)
    odd = raw[3:].view(np.float32).reshape(w.shape)
    odd.flags.writeable = False
    assert not odd.flags.aligned
    for backend in paths:
        a, b = (backend.pack_linear(m, ComputeMode.FP32) for m in (w, odd))
        assert a.data.tobytes() == b.data.tobytes()
        x = values(rng, (5, 37), "normal")
        raw_x = np.zeros(x.nbytes + 1, np.uint8)
        raw_x[1:] = x.reshape(-1).view(np.uint8)
        assert_same_bits(
            backend.linear(raw_x[1:].view(np.float32).reshape(x.shape), a), backend.linear(x, a), backend.isa
        )


X, W = np.ones((2, 4), np.float32), np.ones((3, 4), np.float32)
BF16_X = np.full((2, 4), 0x3F80, np.uint16)


def _packed(dtype: str, n: int, k: int, size: int | None = None) -> PackedLinear:
    need = -(-n // 32) * 32 * (k + k % 2) * (4 if dtype == "fp32" else 2)
    return PackedLinear(dtype, n, k, np.zeros(need if size is None else size, np.uint8))


@pytest.mark.parametrize(
    ("x", "weight", "error", "text"),
    [
        (np.ones((2, 5), np.float32), None, ValueError, r"x: expected float32 \[n, 4\], got float32 \[2, 5\]"),
        (np.ones(4, np.float32), None, ValueError, r"x: expected float32 \[n, 4\], got float32 \[4\]"),
        (X.astype(np.float64), None, TypeError, r"x: expected float32 \[n, 4\], got format 'd' \[2, 4\]"),
        (BF16_X, None, TypeError, r"x: expected float32 \[n, 4\], got uint16 \(bf16\) \[2, 4\]"),
        (np.ones((4, 2), np.float32).T, None, ValueError, r"x: .* not C-contiguous"),
        ("text", None, TypeError, r"x: expected float32 \[n, 4\], got str"),
        (X, PackedLinear("fp32", 3, 4, np.zeros(64, np.uint8)), ValueError, r"weight: expected 512 bytes .* got 64"),
        (
            X,
            _packed("int3", 3, 4),
            ValueError,
            r"weight.dtype: expected 'bf16', 'fp16', 'fp32', 'int8' or 'int4', got 'int3'",
        ),
        (X, _packed("fp32", 0, 4, 512), ValueError, r"weight.n: expected an int from 1 to 2\^31, got 0"),
        (X, _packed("fp32", 2**31, 2**31, 0), ValueError, r"weight: expected at most 2\^44 elements, got 2147483648 x"),
        (X, X, TypeError, r"weight: expected uint8 \[n\], got float32 \[2, 4\]"),
        (X, 7, TypeError, r"weight: expected a packed weight with 'data', got int"),
    ],
)  # fmt: skip
def test_bad_inputs_are_named(
    paths: list[CpuBackend], x: Array, weight: PackedLinear | None, error: type[Exception], text: str
) -> None:
    backend = paths[-1]
    with pytest.raises(error, match=text):
        backend.linear(x, backend.pack_linear(W, ComputeMode.FP32) if weight is None else weight)


def test_unaligned_pack_is_refused(paths: list[CpuBackend]) -> None:
    raw = np.zeros(512 + 128, np.uint8)
    start = -raw.ctypes.data % 64 + 4
    with pytest.raises(ValueError, match="weight: expected data aligned to 64 bytes"):
        paths[0].linear(X, PackedLinear("fp32", 3, 4, raw[start : start + 512]))


@pytest.mark.parametrize(
    ("weight", "error", "text"),
    [
        (np.ones((2, 3)), TypeError, r"weight: expected .* or float16 or float32 \[n, n\], got format 'd'"),
        (np.ones(3, np.float32), ValueError, r"weight: expected .* got float32 \[3\]"),
        (np.ones((0, 3), np.float32), ValueError, r"weight: expected extents from 1 to 2\^31, got float32 \[0, 3\]"),
    ],
)  # fmt: skip
def test_bad_weights_are_named(
    paths: list[CpuBackend], weight: Array, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        paths[0].pack_linear(weight, ComputeMode.FP32)


def test_mode_must_be_a_mode(paths: list[CpuBackend]) -> None:
    with pytest.raises(TypeError, match="mode: expected a ComputeMode, got str"):
        paths[0].pack_linear(W, "bf16")  # type: ignore[arg-type]
