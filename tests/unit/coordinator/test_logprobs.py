"""Log-probabilities of one row."""

from __future__ import annotations

import math

import numpy as np
import pytest

from colibri.coordinator.logprobs import likeliest, token_logprobs


def test_against_a_softmax_in_float64() -> None:
    rng = np.random.default_rng()
    logits = (rng.standard_normal(1000) * 5).astype(np.float32)
    truth = logits.astype(np.float64) - math.log(math.fsum(math.exp(x) for x in logits.tolist()))
    log_sum_exp = float(logits[0]) - float(truth[0])
    found = token_logprobs(logits, log_sum_exp, 17, 20)
    assert abs(found.logprob - truth[17]) < 1e-6
    assert [token for token, _ in found.top] == np.argsort(-truth, kind="stable")[:20].tolist()
    assert all(abs(value - truth[token]) < 1e-6 for token, value in found.top)
    assert token_logprobs(logits, log_sum_exp, 17, 0).top == ()


@pytest.mark.parametrize(
    ("logits", "count", "expected"),
    [
        ([0, 3, 1, 3, 3], 2, [1, 3]),
        ([0, 3, 1, 3, 3], 4, [1, 3, 4, 2]),
        ([-0.0, 0.0, -1], 1, [0]),
        ([-math.inf, 2, -math.inf], 3, [1, 0, 2]),
        ([5], 20, [0]),
        ([5, 6], 0, []),
    ],
)
def test_ties_go_to_the_lower_id(logits: list[float], count: int, expected: list[int]) -> None:
    assert likeliest(np.array(logits, dtype=np.float32), count) == expected


@pytest.mark.parametrize("vocab", [255, 256, 257, 5119, 5120, 32000])
@pytest.mark.parametrize("count", [1, 5, 20])
def test_large_vocabularies_with_ties(vocab: int, count: int) -> None:
    rng = np.random.default_rng()
    logits = np.round(rng.standard_normal(vocab) * 3).astype(np.float32)
    logits[rng.random(vocab) < 0.3] = -np.inf
    assert likeliest(logits, count) == np.argsort(-logits, kind="stable")[:count].tolist()
    logits[:] = -np.inf
    assert likeliest(logits, count) == list(range(count))
