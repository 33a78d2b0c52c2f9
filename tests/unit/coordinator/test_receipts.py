"""The receipt chain against the formula of docs/numerics.md, written out."""

from __future__ import annotations

import struct

import numpy as np
import xxhash

from colibri.coordinator.receipts import FIRST_RECEIPT, next_receipt


def test_formula() -> None:
    logits = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    raw = struct.pack("<Q", 2**63 + 5) + struct.pack("<1000f", *logits.tolist()) + struct.pack("<I", 70000)
    assert next_receipt(2**63 + 5, logits, 70000) == xxhash.xxh64(raw, seed=0).intdigest()


def test_golden() -> None:
    """Fixed values: a change of the chain is a change of the numerics revision."""
    logits = np.array([0.0, -1.5, 3.25], dtype=np.float32)
    first = next_receipt(FIRST_RECEIPT, logits, 2)
    assert (first, next_receipt(first, logits, 1)) == (0xE2568EA117E6DD3D, 0x5885D1851ECC9D7E)


def test_everything_counts() -> None:
    logits = np.zeros(50, dtype=np.float32)
    base = next_receipt(0, logits, 3)
    other = logits.copy()
    other[49] = -0.0  # equal as a number, not as bits
    assert len({base, next_receipt(1, logits, 3), next_receipt(0, logits, 4), next_receipt(0, other, 3)}) == 4


def test_rows_of_a_matrix_and_strided_rows_count_alike() -> None:
    matrix = np.random.default_rng(2).standard_normal((7, 4)).astype(np.float32)
    assert next_receipt(0, matrix[:, 1], 0) == next_receipt(0, matrix[:, 1].copy(), 0)
