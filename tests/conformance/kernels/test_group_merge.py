"""Counting sort and merge: exact on every backend."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from colibri.kernels.api import U32, Backend

from .support import SIZES, assert_same, wide_range


@pytest.mark.parametrize("count", [0, *SIZES, 5000])
def test_group(backend: Backend, rng: np.random.Generator, count: int) -> None:
    for buckets in (1, 2, 8, 17, 300):
        keys = rng.integers(0, buckets, count).astype(np.uint32)
        offsets, order = backend.group(keys, buckets)
        assert offsets.dtype == order.dtype == np.uint32
        expected = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=buckets))])
        assert offsets.tolist() == expected.tolist()
        assert order.tolist() == sorted(range(count), key=lambda i: keys[i])


def test_group_without_buckets(backend: Backend) -> None:
    offsets, order = backend.group(np.zeros(0, dtype=np.uint32), 0)
    assert offsets.tolist() == [0]
    assert order.tolist() == []


def holds_each_row_once_in_its_bucket(keys: U32, offsets: U32, order: U32) -> bool:
    """A consumer's view: bucket b's rows are order[offsets[b] : offsets[b + 1]]."""
    buckets = [order[begin:end] for begin, end in itertools.pairwise(offsets)]
    return sorted(order.tolist()) == list(range(len(keys))) and all(
        (keys[rows] == bucket).all() for bucket, rows in enumerate(buckets)
    )


def test_group_scatters_what_it_counts(backend: Backend, rng: np.random.Generator) -> None:
    """A published version counts rightly and never scatters the indices: its offsets are those of a sort, its order
    is not. It is copied here, so that the check is known to see it."""
    keys = rng.permutation(np.repeat(np.arange(8, dtype=np.uint32), 40))
    offsets, order = backend.group(keys, 8)
    counted = np.concatenate([[0], np.cumsum(np.bincount(keys, minlength=8))]).astype(np.uint32)
    assert offsets.tolist() == counted.tolist()
    assert holds_each_row_once_in_its_bucket(keys, offsets, order)
    for never_scattered in (np.arange(320, dtype=np.uint32), np.zeros(320, np.uint32)):
        assert not holds_each_row_once_in_its_bucket(keys, counted, never_scattered)


@pytest.mark.parametrize("hidden", [1, 15, 16, 17, 33, 576])
@pytest.mark.parametrize("rows", [0, 1, 2, 17, 33, 200])
def test_merge_adds_in_order(backend: Backend, rng: np.random.Generator, rows: int, hidden: int) -> None:
    parts = [wide_range(rng, (units, hidden)).astype(np.float32) for units in (40, 0, 7)]
    counts = rng.integers(0, 5, rows)
    part = rng.choice([0, 2], counts.sum()).astype(np.uint32)
    index = np.array([rng.integers(0, len(parts[p])) for p in part], dtype=np.uint32)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.uint32)
    got = backend.merge(parts, part, index, offsets)
    expected = np.zeros((rows, hidden), dtype=np.float32)
    for row in range(rows):
        for t in range(offsets[row], offsets[row + 1]):
            term = parts[part[t]][index[t]]
            expected[row] = term if t == offsets[row] else expected[row] + term
    assert_same(got, expected)


def test_merge_keeps_the_sign_of_a_single_zero(backend: Backend) -> None:
    """The first term starts the sum: 0 + -0 would lose the sign."""
    one = np.array([-0.0], dtype=np.float32).reshape(1, 1)
    zero = np.zeros(1, dtype=np.uint32)
    got = backend.merge([one], zero, zero, np.array([0, 1], dtype=np.uint32))
    assert np.signbit(got[0, 0])
