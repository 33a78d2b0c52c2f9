"""Receipts: a running XXH64 over everything that decided a token (docs/numerics.md, Receipts)."""

from __future__ import annotations

import xxhash

from colibri.kernels.api import F32

#: What an answer starts from.
FIRST_RECEIPT = 0


def next_receipt(previous: int, logits: F32, token: int) -> int:
    """XXH64 with seed 0 over le64(previous), the row's raw little-endian fp32 logits [vocab], le32(token)."""
    digest = xxhash.xxh64(previous.to_bytes(8, "little"))
    digest.update(logits.astype("<f4", order="C", copy=False).data)
    digest.update(token.to_bytes(4, "little"))
    return digest.intdigest()
