"""Numerics ids: what a handshake compares and what receipts and golden files name (docs/numerics.md).

Page size, thread counts, worker counts and placement are never part of an id, since they never change a bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
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

    @classmethod
    def parse(cls, text: str) -> Self:
        """What `id` wrote. Raises ValueError."""
        parts = text.split("/")
        if len(parts) == 6 and parts[2][:2] == "w=" and parts[3][:5] == "wire=" and parts[5][1:].isdecimal():
            backend, mode, weights, wire, family, revision = parts
            found = cls(backend, mode, weights[2:], wire[5:], family, int(revision[1:]))
            if found.id == text:
                return found
        raise ValueError(f"expert_numerics_id: expected backend/mode/w=../wire=../family/r.., got {text!r}")

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
class MixedNumerics:
    """What decides the bits of experts of several kinds in one deployment. homes: of each expert, in every layer, the
    id it belongs to (colibri.numerics_homes). Equal ids mean equal bits here, too: all kinds and every home are in it.

    Raises ValueError for fewer than two kinds, for kinds that do not take the same rows or weights, or of an older
    revision, and for a home that is none of them.
    """

    kinds: tuple[ExpertNumerics, ...]
    homes: tuple[str, ...]

    def __post_init__(self) -> None:
        ids = [kind.id for kind in self.kinds]
        if len(set(ids)) != len(ids) or len(ids) < 2:
            raise ValueError(f"kinds: expected several that differ, got {', '.join(ids) or 'none'}")
        for kind in self.kinds:
            for name in ("weight_format", "wire_dtype", "revision"):
                expected, got = getattr(self.kinds[0], name), getattr(kind, name)
                if got != expected:
                    raise ValueError(f"{kind.id}: {name}: expected {expected!r} as of {ids[0]}, got {got!r}")
        if set(self.homes) != set(ids):
            raise ValueError(
                f"homes: expected all of {', '.join(ids)}, got {', '.join(sorted(set(self.homes)))}"
            )

    @property
    def weight_format(self) -> str:
        return self.kinds[0].weight_format

    @property
    def deployment_mode(self) -> str:
        return self.kinds[0].deployment_mode

    @property
    def id(self) -> str:
        ids = sorted(kind.id for kind in self.kinds)
        homes = "\n".join(self.homes).encode()
        return f"mixed({'|'.join(ids)})/homes={blake2b(homes, digest_size=8).hexdigest()}"


@dataclass(frozen=True, slots=True)
class EngineNumerics:
    """What decides the bits of a whole answer: the experts', plus the dense part's."""

    expert: ExpertNumerics | MixedNumerics
    dense_dtype: str
    cache_dtype: str
    gate_precision: str = "fp32"

    @property
    def id(self) -> str:
        return f"{self.expert.id}+dense={self.dense_dtype}/kv={self.cache_dtype}/gate={self.gate_precision}"
