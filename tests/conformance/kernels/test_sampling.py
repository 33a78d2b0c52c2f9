"""Sampling: exact, against a literal retelling of docs/numerics.md with Python's integers and floats."""

from __future__ import annotations

import math

import numpy as np
import pytest

from colibri.kernels.api import Backend, SamplingParams
from colibri.kernels.arithmetic.floats import exp32
from colibri.kernels.arithmetic.log64 import log64

from .support import Array


def philox_uniform(seed: int, choice: int, output_index: int) -> float:
    """Philox4x32-10 (Salmon et al., 2011), written out once more."""
    c = [output_index & 0xFFFFFFFF, output_index >> 32, choice, 0]
    k = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return ((c[0] << 32 | c[1]) >> 11) * 2.0**-53


def expected_id(logits: Array, params: SamplingParams, output_index: int) -> int:
    if params.temperature == 0:
        return max(range(len(logits)), key=lambda i: (logits[i], -i))
    z = np.asarray(logits / np.float32(params.temperature), dtype=np.float32)
    order: list[int] = np.argsort(-z, kind="stable").tolist()
    if params.top_k:
        order = order[: params.top_k]
    e = exp32(z - z.max()).astype(np.float64).tolist()
    total = 0.0
    for i in sorted(order):
        total += e[i]
    if params.top_p < 1:
        running, kept = 0.0, []
        for i in order:
            kept.append(i)
            running += e[i]
            if running >= params.top_p * total:
                break
        order = kept
    order = [i for i in order if e[i] >= params.min_p]
    total = 0.0
    for i in sorted(order):
        total += e[i]
    target = philox_uniform(params.seed, params.choice, output_index) * total
    running = 0.0
    for i in sorted(order):
        running += e[i]
        if running > target:
            return i
    raise AssertionError("unreachable: u < 1")


@pytest.mark.parametrize("vocabulary", [1, 2, 15, 16, 17, 31, 33, 1000])
def test_draws(backend: Backend, rng: np.random.Generator, vocabulary: int) -> None:
    for _ in range(60):
        logits = (rng.standard_normal(vocabulary) * rng.choice([0.1, 3, 40])).astype(np.float32)
        if rng.random() < 0.3:
            logits = np.round(logits)
        if rng.random() < 0.3:
            logits[rng.random(vocabulary) < 0.5] = -np.inf
            logits[rng.integers(vocabulary)] = 1
        params = SamplingParams(
            temperature=float(rng.choice([0, 0.2, 0.7, 1, 5])),
            top_k=int(rng.choice([0, 1, 2, 5, 40, 2000])),
            top_p=float(rng.choice([1, 0.95, 0.5, 1e-6])),
            seed=int(rng.integers(0, 2**64, dtype=np.uint64)),
            choice=int(rng.integers(0, 4)),
            min_p=float(rng.choice([0, 0, 1e-6, 0.05, 0.5, 1])),
        )
        index = int(rng.integers(0, 2**40))
        assert backend.sample(logits, params, index) == expected_id(logits, params, index), (params, index)


@pytest.mark.slow
def test_a_large_vocabulary(backend: Backend, rng: np.random.Generator) -> None:
    logits = (rng.standard_normal(49152) * 3).astype(np.float32)
    for top_k, top_p in ((0, 1.0), (50, 1.0), (0, 0.9), (50, 0.9), (0, 0.9999999), (49151, 1.0)):
        for index in range(3):
            params = SamplingParams(1.0, top_k, top_p, int(rng.integers(2**63)))
            assert backend.sample(logits, params, index) == expected_id(logits, params, index), params


def test_ties(backend: Backend) -> None:
    logits = np.array([0, 2, -1, 2, 2, -0.0], dtype=np.float32)
    assert backend.sample(logits, SamplingParams(), 0) == 1
    assert backend.sample(np.array([-0.0, 0.0], dtype=np.float32), SamplingParams(), 0) == 0
    drawn = {backend.sample(logits, SamplingParams(1.0, 2, 1.0, seed), 0) for seed in range(60)}
    assert drawn == {1, 3}


def test_min_p_keeps_what_is_likely_enough(backend: Backend) -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.05, 0.25])).astype(np.float32)
    for min_p, expected in ((0.0, {0, 1, 2, 3, 4}), (0.3, {1, 2, 4}), (0.6, {1, 4}), (1.0, {1})):
        params = SamplingParams(1.0, seed=3, min_p=min_p)
        assert {backend.sample(logits, params, index) for index in range(400)} == expected


@pytest.mark.parametrize("min_p", [-0.1, 1.1, math.nan])
def test_a_min_p_out_of_range(backend: Backend, min_p: float) -> None:
    with pytest.raises(ValueError, match="min_p"):
        backend.sample(np.zeros(3, dtype=np.float32), SamplingParams(1.0, min_p=min_p), 0)


def test_frequencies(backend: Backend) -> None:
    """2,000 draws of a known distribution: chi-squared with 3 degrees of freedom, below its 1 - 1e-9 quantile."""
    p = np.array([0.5, 0.25, 0.2, 0.05])
    logits = np.log(p).astype(np.float32)
    draws = [backend.sample(logits, SamplingParams(1.0, seed=99), index) for index in range(2000)]
    counts = np.bincount(draws, minlength=4)
    assert float((((counts - 2000 * p) ** 2) / (2000 * p)).sum()) < 45


def test_seed_choice_and_index_all_matter(backend: Backend) -> None:
    logits = np.zeros(1000, dtype=np.float32)
    base = (7, 0, 0)
    others = [(8, 0, 0), (7 + 2**32, 0, 0), (7, 1, 0), (7, 0, 1), (7, 0, 2**32)]

    def draw(seed: int, choice: int, index: int) -> int:
        return backend.sample(logits, SamplingParams(1.0, seed=seed, choice=choice), index)

    assert draw(*base) == draw(*base)
    assert len({draw(*base), *(draw(*other) for other in others)}) >= 5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_logits(backend: Backend, bad: float) -> None:
    logits = np.zeros(40, dtype=np.float32)
    logits[33] = bad
    for temperature in (0.0, 1.0):
        with pytest.raises(ValueError, match="logits"):
            backend.sample(logits, SamplingParams(temperature), 0)


def test_no_finite_logit(backend: Backend) -> None:
    with pytest.raises(ValueError, match="logits"):
        backend.sample(np.full(20, -np.inf, dtype=np.float32), SamplingParams(), 0)


def test_a_temperature_that_overflows(backend: Backend) -> None:
    with pytest.raises(ValueError, match="temperature"):
        backend.sample(np.full(3, 50, dtype=np.float32), SamplingParams(1e-37), 0)


@pytest.mark.parametrize("rows", [0, 1, 2, 17])
@pytest.mark.parametrize("vocabulary", [1, 2, 15, 16, 17, 255, 256, 257, 1000])
def test_log_sum_exp(backend: Backend, rng: np.random.Generator, rows: int, vocabulary: int) -> None:
    """Exact, against the contract retold with Python's floats; near the truth, against math.fsum."""
    logits = (rng.standard_normal((rows, vocabulary)) * 5).astype(np.float32)
    logits[rng.random(logits.shape) < 0.1] = -np.inf
    logits[:, 0] = 1
    found = backend.log_sum_exp(logits)
    assert found.shape == (rows,)
    assert found.dtype == np.float64
    for row, value in zip(logits, found.tolist(), strict=True):
        total = 0.0
        for e in exp32(row - row.max()).tolist():
            total += e
        assert value == float(row.max()) + log64(total)
        truth = math.log(math.fsum(math.exp(x) for x in row.tolist()))
        assert abs(value - truth) < 1e-6


def test_log_sum_exp_of_a_large_vocabulary(backend: Backend, rng: np.random.Generator) -> None:
    logits = (rng.standard_normal((3, 49152)) * 3).astype(np.float32)
    truth = [math.log(math.fsum(map(math.exp, row.tolist()))) for row in logits]
    assert np.abs(backend.log_sum_exp(logits) - truth).max() < 1e-6
    assert backend.log_sum_exp(logits[1:2]) == backend.log_sum_exp(logits)[1]


@pytest.mark.parametrize(("bad", "named"), [(math.nan, r"logits\[2, 33\].*nan"), (math.inf, "inf")])
def test_log_sum_exp_of_bad_logits(backend: Backend, bad: float, named: str) -> None:
    logits = np.zeros((4, 40), dtype=np.float32)
    logits[2, 33] = bad
    with pytest.raises(ValueError, match=named):
        backend.log_sum_exp(logits)
    with pytest.raises(ValueError, match=r"logits\[1\]: expected at least one finite value"):
        backend.log_sum_exp(np.array([[0, 1], [-np.inf, -np.inf]], dtype=np.float32))
    with pytest.raises((ValueError, TypeError), match="logits"):
        backend.log_sum_exp(np.zeros(4, dtype=np.float32))


def test_log64() -> None:
    for x in (1.0, 2.0, 0.5, 1e-300, 1e300, 3.0, 32000.0, 1 + 2**-52):
        assert abs(log64(x) - math.log(x)) <= 4 * math.ulp(math.log(x))
