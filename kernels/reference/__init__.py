"""Reference backend: docs/numerics.md in NumPy, plain and slow, float64 between the rounding points.

Belongs here: one file per concept, each a pure function of arrays. Within a few fp32 rounding errors of the cpu
backend, not bit-equal to it; packing, grouping, RoPE, merging and sampling (given the same logits) are exact.

Does not belong here: speed, threads, and what others need too (`colibri.kernels.arithmetic`, `layout`, `checks`).
"""

from __future__ import annotations

from colibri.kernels.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
