"""The resources that each kernel may take: what lets as many of its blocks run as its launches count on."""

from __future__ import annotations

from tests.support.cuda.cubin import Resources

#: Shared memory that a block may have on the smallest card with tensor cores for bf16 (compute capability 8.6, 8.9).
SHARED_BYTES = 99 << 10
#: Since compute capability 9.0 a KiB of each block's shared memory is the system's.
_RESERVED = 1024


def resource_bounds(kernel: str) -> Resources:
    """registers: of 65536 for the blocks that should be resident; stack: bytes a thread may spill."""
    if kernel.endswith(
        "_wide"
    ):  # 256 threads, one block: the largest tile, with room for what lies outside its loop
        return Resources(255, 96 if "bf16" in kernel else 0, _RESERVED)
    if kernel.endswith("_rows32"):
        return Resources(255, 0, _RESERVED)
    if kernel.endswith("_rows8"):
        return Resources(168, 0, _RESERVED)
    if kernel == "attend_rows":  # sixteen sums of a dot product, indexed
        return Resources(64, 64, _RESERVED)
    if kernel == "plain_product":
        return Resources(64, 16, _RESERVED)
    return Resources(64, 0, _RESERVED)
