"""Reference backend: docs/numerics.md in NumPy, plain and slow, float64 between the rounding points.

Belongs here: one file per concept, each a pure function of arrays. Does not belong here: speed, threads,
other parts. Within a few fp32 rounding errors of the cpu backend, not bit-equal to it; packing, grouping,
RoPE, merging and sampling (given the same logits) are exact.
"""

from __future__ import annotations

from colibri.kernels.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
