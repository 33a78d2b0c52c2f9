"""Counting sort of rows by key."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import U32
from colibri.kernels.checks.arrays import check_array, check_below


def group(keys: U32, buckets: int) -> tuple[U32, U32]:
    check_array("keys", keys, np.uint32, ("n",))
    if not 0 <= buckets <= 2**24:
        raise ValueError(f"buckets: expected 0 .. 2^24, got {buckets}")
    check_below("keys", keys, buckets, "buckets")
    offsets = np.zeros(buckets + 1, dtype=np.uint32)
    np.cumsum(np.bincount(keys, minlength=buckets), out=offsets[1:])
    return offsets, np.argsort(keys, kind="stable").astype(np.uint32)
