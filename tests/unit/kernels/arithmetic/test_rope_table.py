"""RoPE tables: the same bits on every machine, and correctly rounded but for a hair."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash

from colibri.kernels.arithmetic.rope_table import MAX_ANGLE, build_rope_table

#: (theta, head_dim, positions) -> XXH64 of cos, then sin, little endian.
HASHES: dict[tuple[float, int, int], str] = {
    (10000.0, 2, 100): "2969047176e8b059",
    (10000.0, 64, 4096): "26456807e69d755b",
    (100000.0, 64, 8192): "6b31c53fc8f53d53",
    (1000000.0, 128, 32768): "8774522b09c9c9fd",
    (500000.0, 128, 2048): "1d05c37caafdbb62",
    (10000.0, 96, 1000): "5e12364c2f92e763",
}


@pytest.mark.parametrize(("theta", "head_dim", "positions"), HASHES)
def test_hash(theta: float, head_dim: int, positions: int) -> None:
    table = build_rope_table(theta, head_dim, positions)
    digest = xxhash.xxh64(table.cos.astype("<f4").tobytes())
    digest.update(table.sin.astype("<f4").tobytes())
    assert digest.hexdigest() == HASHES[theta, head_dim, positions]


@pytest.mark.parametrize(
    ("theta", "head_dim", "positions"), [(1e4, 64, 4096), (1e6, 128, 3000), (123.4, 6, 500), (0.5, 8, 1000)]
)
def test_within_one_ulp_of_libm(theta: float, head_dim: int, positions: int) -> None:
    table = build_rope_table(theta, head_dim, positions)
    inv_freq = (theta ** (-2.0 * np.arange(head_dim // 2) / head_dim)).astype(np.float32)
    angle = (np.arange(positions, dtype=np.float32)[:, None] * inv_freq).astype(np.float64)
    for got, exact in ((table.cos, np.cos(angle)), (table.sin, np.sin(angle))):
        assert got.dtype == np.float32
        assert got.shape == (positions, head_dim // 2)
        assert (np.abs(got - exact) <= np.spacing(np.abs(exact).astype(np.float32))).all()


def test_far_positions() -> None:
    """The reduction by pi / 2 keeps its accuracy up to the largest angle."""
    positions = int(MAX_ANGLE)
    table = build_rope_table(1e4, 2, positions)
    far = np.arange(positions - 5000, positions).astype(np.float64)
    for got, exact in ((table.cos[-5000:, 0], np.cos(far)), (table.sin[-5000:, 0], np.sin(far))):
        assert (np.abs(got - exact) <= np.spacing(np.abs(exact).astype(np.float32))).all()


def test_empty_and_first() -> None:
    assert build_rope_table(1e4, 64, 0).cos.shape == (0, 32)
    first = build_rope_table(1e4, 64, 1)
    assert (first.cos == 1).all()
    assert (first.sin == 0).all()


@pytest.mark.parametrize(
    ("theta", "head_dim", "positions", "name"),
    [
        (0.0, 64, 1, "theta"),
        (float("inf"), 64, 1, "theta"),
        (1e4, 0, 1, "head_dim"),
        (1e4, 7, 1, "head_dim"),
        (1e4, 64, -1, "positions"),
        (1e4, 64, 2**20 + 1, "positions"),
        (0.01, 8, 2**18, "positions"),  # inverse frequencies above 1: the angles leave the exact range
    ],
)
def test_bad_arguments(theta: float, head_dim: int, positions: int, name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected"):
        build_rope_table(theta, head_dim, positions)
