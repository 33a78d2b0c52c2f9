"""Choosing from logits that are there already, in both precisions, on every backend and path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pytest

from colibri.kernels.api import F32, Backend, ComputeMode, GatePrecision, GateResult, TopK

from .support import softmax

#: Around vectors of 16, rows turned (up to 128 experts), blocks of 64, and the path of any length.
EXPERTS = (1, 2, 8, 15, 16, 17, 31, 33, 64, 127, 128, 129, 192, 255, 256, 257, 513, 1000, 1024, 1025, 1500)
LEAST = np.float32(-3.4028235e38)


def sorted_ids(keys: F32, k: int) -> list[list[int]]:
    return [sorted(range(len(row)), key=lambda e: (-row[e], e))[:k] for row in keys.tolist()]


def logits_of(rng: np.random.Generator, rows: int, experts: int) -> list[F32]:
    """Ordinary; full of ties; all negative; zeros of both signs; mostly the least number there is."""
    x = rng.standard_normal((rows, experts)).astype(np.float32)
    zeros = np.where(rng.random(x.shape) < 0.5, np.float32(-0.0), np.float32(0.0))
    least = np.where(rng.random(x.shape) < 0.9, LEAST, np.float32(-1))
    return [x, (np.round(x * 2) / 2).astype(np.float32), -np.abs(x), zeros, least]


@pytest.mark.parametrize("experts", EXPERTS)
def test_against_a_plain_sort(backend: TopK, rng: np.random.Generator, experts: int) -> None:
    for k in sorted(
        {1, 2, min(3, experts), min(8, experts), min(16, experts)} - ({2} if experts < 2 else set())
    ):
        for x in logits_of(rng, int(rng.choice([1, 7, 16, 19])), experts):
            got = backend.top_k(x, k)
            assert got.ok.all()
            assert got.differing == 0
            assert got.experts.tolist() == sorted_ids(x, k)
            chosen = np.take_along_axis(x.astype(np.float64), got.experts.astype(np.int64), axis=1)
            np.testing.assert_allclose(got.weights, softmax(chosen), rtol=1e-5, atol=1e-7)


def test_no_rows(backend: TopK) -> None:
    for experts in (8, 300):
        got = backend.top_k(np.zeros((0, experts), np.float32), 2)
        assert got.experts.shape == got.weights.shape == (0, 2)
        assert got.ok.shape == (0,)


@pytest.mark.parametrize("precision", list(GatePrecision), ids=lambda p: p.value)
def test_bad_rows_alone(backend: TopK, rng: np.random.Generator, precision: GatePrecision) -> None:
    for experts in (8, 100, 130, 1024, 1100):
        for k in (2, 8):
            x = rng.standard_normal((18, experts)).astype(np.float32)
            clean = backend.top_k(x, k, precision)
            bad = [2, 9, 17]
            for row, value in zip(bad, (np.nan, np.inf, -np.inf), strict=True):
                x[row, rng.integers(experts)] = value
            got = backend.top_k(x, k, precision)
            assert np.flatnonzero(~got.ok).tolist() == bad
            assert not got.experts[bad].any()
            assert not got.weights[bad].any()
            assert got.experts[got.ok].tobytes() == clean.experts[got.ok].tobytes()
            assert got.weights[got.ok].tobytes() == clean.weights[got.ok].tobytes()


def test_paths_agree(cpu_backends: list[TopK], rng: np.random.Generator) -> None:
    for experts in EXPERTS:
        for precision in GatePrecision:
            for x in logits_of(rng, 70, experts):
                k = int(rng.integers(1, min(experts, 16) + 1))
                first = cpu_backends[0].top_k(x, k, precision)
                for other in cpu_backends[1:]:
                    got = other.top_k(x, k, precision)
                    assert got.experts.tobytes() == first.experts.tobytes()
                    assert got.weights.tobytes() == first.weights.tobytes()
                    assert got.differing == first.differing


# ---- int16 ----


def integers(x: F32) -> F32:
    """What the option orders by: nearest even, over the row's largest magnitude."""
    return np.array([np.rint(row * (np.float32(32767) / np.abs(row).max())) for row in x], np.float32)


@pytest.mark.parametrize("experts", [8, 64, 129, 1024, 1025])
def test_int16_orders_by_rounded_integers(backend: TopK, rng: np.random.Generator, experts: int) -> None:
    for k in (1, 2, 8):
        x = (rng.standard_normal((40, experts)) * rng.choice([1e-3, 1, 50, 1e30])).astype(np.float32)
        x[:, 3] = x[:, 5] * np.float32(1 + 1e-6)  # nearly a tie
        got = backend.top_k(x, k, GatePrecision.INT16)
        assert got.experts.tolist() == sorted_ids(integers(x), k)
        chosen = np.take_along_axis(x.astype(np.float64), got.experts.astype(np.int64), axis=1)
        np.testing.assert_allclose(got.weights, softmax(chosen), rtol=1e-5, atol=1e-7)
        exact = backend.top_k(x, k)
        assert got.differing == int((got.experts != exact.experts).any(axis=1).sum())


def test_int16_of_zeros_and_of_tiny_logits(backend: TopK) -> None:
    """No ratio to scale by: all are equal, the lowest ids are chosen."""
    x = np.zeros((2, 9), np.float32)
    x[1, 7] = 2e-36
    got = backend.top_k(x, 2, GatePrecision.INT16)
    assert got.ok.all()
    assert got.experts.tolist() == [[0, 1], [0, 1]]
    assert got.differing == 1


# Two faults of a published int16 gate: when a later logit beats the first it moves the value to the second place, but
# not its id; and it cuts the scaled logits off instead of rounding them. Each test holds a copy of the fault.


def running_top_2(keys: F32, ids_follow: bool) -> list[list[int]]:
    out = []
    for row in keys.tolist():
        first, second, id0, id1 = -np.inf, -np.inf, 0, 0
        for expert, key in enumerate(row):
            if key > first:
                first, second = key, first
                id0, id1 = expert, (id0 if ids_follow else id1)
            elif key > second:
                second, id1 = key, expert
        out.append([id0, id1])
    return out


def test_ids_move_with_their_values(backend: TopK) -> None:
    """Ascending logits: every one beats all before it, so that every second place comes from a first."""
    for experts in (4, 8, 64, 200, 1024):
        x = np.arange(experts * 3, dtype=np.float32).reshape(3, experts)
        expected = [[experts - 1, experts - 2]] * 3
        assert running_top_2(integers(x), ids_follow=False) != expected
        assert running_top_2(integers(x), ids_follow=True) == expected
        for precision in GatePrecision:
            got = backend.top_k(x, 2, precision)
            assert got.experts.tolist() == expected
            share = 1 / (1 + np.exp(-1.0))
            np.testing.assert_allclose(got.weights, [[share, 1 - share]] * 3, rtol=1e-6)


def test_near_ties_are_rounded_not_cut_off(backend: TopK) -> None:
    """The lower id's logit is a little below the higher's: 1000.4 and 1000.6 of 32767. Cut off they are a tie, and
    the wrong one wins; rounded they are not."""
    x = np.array([[32767, 1000.4, 1000.6, -32767]], np.float32)
    cut = np.trunc(x * (np.float32(32767) / np.abs(x).max()))
    assert sorted_ids(cut, 2) == [[0, 1]]
    got = backend.top_k(x, 2, GatePrecision.INT16)
    assert got.experts.tolist() == [[0, 2]]
    assert got.differing == 0
    # Below zero, cutting off rounds the other way.
    x = np.array([[-1000.6, -1000.4, -32767, -32767]], np.float32)
    cut = np.trunc(x * (np.float32(32767) / np.abs(x).max()))
    assert sorted_ids(cut, 2) == [[0, 1]]
    assert backend.top_k(x, 2, GatePrecision.INT16).experts.tolist() == [[1, 0]]


def test_what_rounding_makes_a_tie_is_counted(backend: TopK) -> None:
    """1000.6 and 1001.4 are the same integer: the lower id is chosen, which fp32 would not have done."""
    x = np.array([[32767, 1000.6, 1001.4, -32767], [4, 3, 2, 1]], np.float32)
    assert backend.top_k(x, 2).experts.tolist() == [[0, 2], [0, 1]]
    got = backend.top_k(x, 2, GatePrecision.INT16)
    assert got.experts.tolist() == [[0, 1], [0, 1]]
    assert got.differing == 1


def test_the_largest_share_stays_finite(backend: TopK) -> None:
    """An integer tie between logits far apart: the softmax is of the logits, and cannot overflow."""
    x = np.array([[1e30, -3e25, -1e25, -2e25]], np.float32)
    got = backend.top_k(x, 4, GatePrecision.INT16)
    assert got.experts.tolist() == sorted_ids(integers(x), 4)
    assert np.isfinite(got.weights).all()
    low = np.array([[-1e30, 1e25, 1.2e25]], np.float32)
    got = backend.top_k(low, 2, GatePrecision.INT16)
    assert got.experts.tolist() == [[1, 2]]
    assert got.weights.tolist() == [[0.0, 1.0]]


class Both(Backend, TopK, Protocol): ...


def test_gate_is_product_and_choice(backend: Both, rng: np.random.Generator) -> None:
    weight = backend.pack_linear(rng.standard_normal((40, 96)).astype(np.float32), ComputeMode.FP32)
    x = rng.standard_normal((33, 96)).astype(np.float32)
    logits = backend.linear(x, weight)
    for precision in GatePrecision:
        whole, alone = backend.gate(x, weight, 4, precision), backend.top_k(logits, 4, precision)
        assert whole.experts.tobytes() == alone.experts.tobytes()
        assert whole.weights.tobytes() == alone.weights.tobytes()
        assert whole.differing == alone.differing


Call = Callable[[TopK], GateResult]
BAD: Sequence[tuple[str, type[Exception], Call]] = (
    ("logits", TypeError, lambda b: b.top_k(np.ones((2, 4)), 2)),  # type: ignore[arg-type]
    ("logits", ValueError, lambda b: b.top_k(np.ones(4, np.float32), 2)),
    ("k", ValueError, lambda b: b.top_k(np.ones((2, 4), np.float32), 5)),
    ("k", ValueError, lambda b: b.top_k(np.ones((2, 4), np.float32), 0)),
    ("k", ValueError, lambda b: b.top_k(np.ones((2, 400), np.float32), 17)),
    ("logits", ValueError, lambda b: b.top_k(np.ones((1, 65537), np.float32), 2)),
    ("precision", TypeError, lambda b: b.top_k(np.ones((2, 4), np.float32), 2, "int16")),  # type: ignore[arg-type]
)


@pytest.mark.parametrize(("name", "error", "call"), BAD)
def test_errors(backend: TopK, name: str, error: type[Exception], call: Call) -> None:
    with pytest.raises(error, match=rf"^{name}: expected "):
        call(backend)
