"""The arithmetic that must be equal on every machine: against definitions, big integers and fixed values."""

from __future__ import annotations

import zlib
from fractions import Fraction

import numpy as np
import pytest

from colibri.models.dtypes import bf16_from_fp32, fp32_from_stored
from colibri.models.exact_noise import VARIANCE, noise, normal_like
from colibri.models.gguf_llama import half_split_rows
from colibri.models.upcycle import noise_scale, perturbed, variance

FIRST = [-157, -175, -33, 196, 93, -157, -326, -141]
CHECKSUM = 266402700


def test_noise_is_the_byte_sum_of_philox_words() -> None:
    key = np.array([7, zlib.crc32(b"name")], dtype=np.uint64)
    words = np.random.Philox(key=key).random_raw(1000)
    expected = [sum(int(word).to_bytes(8, "little")) - 1020 for word in words]
    assert noise(7, "name", 1000).tolist() == expected


def test_noise_is_fixed_for_good() -> None:
    assert noise(0, "a", 8).tolist() == FIRST
    assert zlib.crc32(noise(1, "model.norm.weight", 100_000).astype("<i4").tobytes()) == CHECKSUM


@pytest.mark.parametrize("start", [0, 4, 400, 32768])
def test_noise_can_start_anywhere(start: int) -> None:
    assert np.array_equal(noise(3, "x", 40_000)[start:], noise(3, "x", 40_000 - start, start))


def test_noise_cannot_start_inside_a_step() -> None:
    with pytest.raises(ValueError, match="start: expected a multiple of 4, got 2"):
        noise(3, "x", 4, 2)


def test_noise_has_the_stated_moments() -> None:
    values = np.concatenate([noise(seed, "moments", 1 << 20) for seed in range(4)]).astype(np.float64)
    assert abs(values.mean()) < 5 * (VARIANCE / values.size) ** 0.5
    assert abs(values.var() / VARIANCE - 1) < 0.005
    assert abs(np.mean(values**4) / VARIANCE**2 - (3 - 1.2 / 8)) < 0.02, "kurtosis of eight uniform bytes"
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.003
    assert abs(np.corrcoef(noise(0, "a", 1 << 20), noise(0, "b", 1 << 20))[0, 1]) < 0.005


def test_normal_like_has_its_standard_deviation() -> None:
    values = normal_like(5, "w", (300, 700), 0.25)
    assert values.shape == (300, 700)
    assert values.dtype == np.float32
    assert abs(values.std() / 0.25 - 1) < 0.01
    assert np.array_equal(normal_like(5, "w", (700, 300), 0.25).reshape(-1), values.reshape(-1))


def test_bf16_rounds_to_nearest_even() -> None:
    rng = np.random.default_rng()
    bits = rng.integers(0, 1 << 32, 200_001, dtype=np.uint32)
    values = np.concatenate(
        [bits.view(np.float32), np.array([1.0, 1.00390625, 1.01171875, -0.0, 3.4e38], np.float32)]
    )
    values = values[np.isfinite(values)]
    rounded = bf16_from_fp32(values)
    low = (values.view(np.uint32) >> 16).astype(np.uint16)
    below, above = fp32_from_stored(low, "bf16").astype(np.float64), None
    with np.errstate(over="ignore"):
        above = fp32_from_stored(low + np.uint16(1), "bf16").astype(np.float64)
    exact = values.astype(np.float64)
    down, up = np.abs(exact - below), np.abs(above - exact)
    # Beyond the largest bf16 number, infinity counts as 2**128.
    up = np.where(np.isinf(above), 2.0**128 - np.abs(exact), up)
    expected = np.where((down < up) | ((down == up) & (low % 2 == 0)), low, low + np.uint16(1))
    assert np.array_equal(rounded, expected)


def test_variance_is_exact_on_fixed_point() -> None:
    rng = np.random.default_rng()
    values = (rng.normal(size=(37, 129)) * 3).astype(np.float32)
    fixed = [round(Fraction(float(v)) * 2**20) for v in values.reshape(-1)]
    mean = Fraction(sum(fixed), len(fixed))
    expected = sum((Fraction(v) - mean) ** 2 for v in fixed) / len(fixed) / 4**20
    assert variance(values) == expected
    assert float(variance(values)) == pytest.approx(values.astype(np.float64).var(), rel=1e-6)


def test_variance_at_the_limit_does_not_overflow() -> None:
    largest = np.nextafter(np.float32(64), np.float32(0))
    assert float(variance(np.full((4, 4096), largest, np.float32))) == 0
    assert float(variance(np.tile(np.array([largest, -largest]), 8192))) == pytest.approx(4096)
    for bad in (np.full(3, 64.0, np.float32), np.array([np.nan], np.float32), np.empty(0, np.float32)):
        with pytest.raises(ValueError, match="below 64"):
            variance(bad)


def test_perturbation_is_three_per_cent_and_differs_by_name() -> None:
    rng = np.random.default_rng()
    values = (rng.normal(size=(96, 1031)) * 0.1).astype(np.float32)
    scale = noise_scale(values, 3)
    assert float(scale) * VARIANCE**0.5 == pytest.approx(0.03 * values.std(), rel=1e-4)
    one, two = (perturbed(values, scale, 1, name) for name in ("one", "two"))
    assert one.shape == values.shape
    delta = fp32_from_stored(one, "bf16") - fp32_from_stored(two, "bf16")
    assert delta.std() == pytest.approx(0.03 * values.std() * 2**0.5, rel=0.05)
    step = noise(1, "one", values.size).reshape(values.shape).astype(np.float32) * scale
    assert np.array_equal(one, bf16_from_fp32(values + step))


def test_half_split_rows_undoes_the_interleaving() -> None:
    rng = np.random.default_rng()
    for heads, head_dim, columns in ((1, 2, 1), (3, 8, 5), (9, 64, 7)):
        original = rng.normal(size=(heads * head_dim, columns)).astype(np.float32)
        stored = np.empty_like(original)
        for head in range(heads):
            for i in range(head_dim // 2):
                for half in range(2):
                    stored[head * head_dim + 2 * i + half] = original[
                        head * head_dim + half * head_dim // 2 + i
                    ]
        assert np.array_equal(half_split_rows(stored, head_dim), original)
