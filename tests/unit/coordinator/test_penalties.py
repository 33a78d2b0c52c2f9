"""Penalties and the least length: exact, against the contract retold one id at a time."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from colibri.coordinator.penalties import LogitShaper, Penalties, without
from colibri.kernels.api import F32, U32

VOCAB = 50


def expected(logits: F32, penalties: Penalties, prompt: U32, answer: list[int]) -> F32:
    out = logits.copy()
    counts = Counter(answer)
    for token in {*prompt.tolist(), *answer}:
        value = out[token]
        r = np.float32(penalties.repetition)
        out[token] = value / r if value > 0 else value * r
    for token, count in counts.items():
        out[token] = out[token] - np.float32(penalties.frequency) * np.float32(count)
        out[token] = out[token] - np.float32(penalties.presence)
    return out


@pytest.mark.parametrize(
    "penalties",
    [
        Penalties(repetition=1.3),
        Penalties(repetition=0.7),
        Penalties(presence=0.6),
        Penalties(presence=-2.0),
        Penalties(frequency=0.4),
        Penalties(1.1, 0.3, -0.2),
    ],
)
def test_against_the_contract(penalties: Penalties) -> None:
    rng = np.random.default_rng()
    prompt = rng.integers(0, VOCAB, 9).astype(np.uint32)
    shaper = LogitShaper(VOCAB, penalties, prompt, np.zeros(0, np.uint32), 0, ())
    answer: list[int] = []
    for _ in range(40):
        logits = (rng.standard_normal(VOCAB) * 4).astype(np.float32)
        logits[rng.integers(VOCAB)] = -np.inf
        kept = logits.copy()
        found = shaper.shaped(logits)
        assert found.dtype == np.float32
        assert np.array_equal(found, expected(logits, penalties, prompt, answer))
        assert np.array_equal(logits, kept), "raw logits stay as they are"
        answer.append(int(rng.integers(0, VOCAB)))
        shaper.saw(answer[-1])


def test_a_resumed_answer_knows_its_earlier_tokens() -> None:
    rng = np.random.default_rng()
    prompt, answer = (rng.integers(0, VOCAB, 20).astype(np.uint32) for _ in range(2))
    logits = rng.standard_normal(VOCAB).astype(np.float32)
    penalties = Penalties(1.2, 0.5, 0.25)
    for cut in range(len(answer) + 1):
        shaper = LogitShaper(VOCAB, penalties, prompt, answer[:cut], 25, [3])
        for token in answer[cut:].tolist():
            shaper.saw(token)
        found = expected(logits, penalties, prompt, answer.tolist())
        found[3] = -np.inf
        assert np.array_equal(shaper.shaped(logits), found)


def test_the_least_length_forbids_stop_ids_until_then() -> None:
    shaper = LogitShaper(VOCAB, Penalties(), np.array([1], np.uint32), np.zeros(0, np.uint32), 2, [4, 7])
    logits = np.arange(VOCAB, dtype=np.float32)
    for generated in range(4):
        shaped = shaper.shaped(logits)
        assert np.isneginf(shaped[[4, 7]]).all() == (generated < 2)
        assert np.array_equal(np.delete(shaped, [4, 7]), np.delete(logits, [4, 7]))
        shaper.saw(4)


def test_bad_logits_are_not_hidden() -> None:
    logits = np.array([np.nan, np.inf, -np.inf, 1], dtype=np.float32)
    found = without(logits, np.arange(4))
    assert np.isnan(found[0])
    assert found[1:].tolist() == [np.inf, -np.inf, -np.inf]


def test_off() -> None:
    assert Penalties().off
    assert not any(p.off for p in (Penalties(1.1), Penalties(presence=0.1), Penalties(frequency=-0.1)))
