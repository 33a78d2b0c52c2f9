"""Numerics ids: what a handshake compares and what receipts and golden files name (docs/numerics.md).

Page size, thread counts, worker counts and placement are never part of an id, since they never change a bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

#: Bumped whenever a bit of any mode changes on purpose; golden digests in tests/ enforce that.
NUMERICS_REVISION = 1


@dataclass(frozen=True, slots=True)
class ExpertNumerics:
    """What decides the bits of an expert's output.

    backend: 'cpu', 'cuda', 'reference'; compute_mode: the expert's arithmetic, 'fp32', 'bf16' or, of int8 and
    int4 weights, 'int8'; weight_format: dtype and group of the stored expert, e.g. 'bf16', 'int4g64';
    wire_dtype: dtype of rows on the wire; family: instruction family where it matters ('any' on x86, whose
    paths agree).
    """

    backend: str
    compute_mode: str
    weight_format: str
    wire_dtype: str
    family: str = "any"
    revision: int = NUMERICS_REVISION

    @classmethod
    def of(cls, backend: str, compute_mode: str, stored_dtype: str, family: str = "any") -> Self:
        """What plain weights of `stored_dtype` compute in a mode: rows travel in the mode's own dtype, and
        bf16 mode packs every checkpoint as bf16."""
        weights = "bf16" if compute_mode == "bf16" else stored_dtype
        return cls(backend, compute_mode, weights, wire_dtype=compute_mode, family=family)

    @classmethod
    def of_quantised(
        cls, backend: str, compute_mode: str, dtype: str, group: int, family: str = "any"
    ) -> Self:
        """What an int8 or int4 pack computes in a deployment of this mode, 'fp32' or 'bf16': its rows travel in
        the mode's dtype and are quantised where the expert is.

        Raises ValueError for another mode, dtype ('int8', 'int4') or group (32, 64, 128).
        """
        for name, value, allowed in (
            ("compute_mode", compute_mode, ("fp32", "bf16")),
            ("dtype", dtype, ("int8", "int4")),
            ("group", group, (32, 64, 128)),
        ):
            if value not in allowed:
                raise ValueError(f"{name}: expected one of {allowed}, got {value!r}")
        # CUDA dequantises weights and takes rows as they are; elsewhere rows become int8, too.
        arithmetic = compute_mode if backend == "cuda" else "int8"
        return cls(backend, arithmetic, f"{dtype}g{group}", wire_dtype=compute_mode, family=family)

    @property
    def deployment_mode(self) -> str:
        """The --compute-mode of a deployment that computes so: experts of int8 and int4 serve both modes, and the
        rows tell which."""
        return self.wire_dtype

    @property
    def id(self) -> str:
        return (
            f"{self.backend}/{self.compute_mode}/w={self.weight_format}/wire={self.wire_dtype}"
            f"/{self.family}/r{self.revision}"
        )


@dataclass(frozen=True, slots=True)
class EngineNumerics:
    """What decides the bits of a whole answer: the experts', plus the dense part's."""

    expert: ExpertNumerics
    dense_dtype: str
    cache_dtype: str
    gate_precision: str = "fp32"

    @property
    def id(self) -> str:
        return f"{self.expert.id}+dense={self.dense_dtype}/kv={self.cache_dtype}/gate={self.gate_precision}"
