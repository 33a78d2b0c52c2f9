"""Random weights in the packed layout, in as many copies as keep them out of the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import GROUPS, Array, ComputeMode, PackedExpert, PackedLinear
from colibri.kernels.cpu.backend import CpuBackend, huge_bytes

Packed = TypeVar("Packed", PackedExpert, PackedLinear)

_NUMPY = {"bf16": np.uint16, "fp16": np.float16, "fp32": np.float32}


@dataclass(frozen=True, slots=True)
class Format:
    """dtype of stored weights and, for int8 and int4, the group: 'bf16', 'int8g128', ..."""

    dtype: str
    group: int = 0

    @property
    def name(self) -> str:
        return f"{self.dtype}g{self.group}" if self.group else self.dtype

    @property
    def integer(self) -> bool:
        return self.group > 0

    @property
    def rows(self) -> str:
        """Dtype of the rows that meet such weights."""
        return "fp32" if self.dtype in ("fp16", "fp32") else "bf16"

    def peak(self, isa: str) -> str:
        """The instruction that bounds their product on a path: that of `isa`, or the fp32 multiply-add."""
        own = "int8" if self.integer else "bf16" if self.dtype == "bf16" else "fp32"
        return own if isa == "avx512bf16" else "" if self.integer else "fp32"


FORMATS = tuple(
    [Format(name) for name in _NUMPY] + [Format(name, group) for name in ("int8", "int4") for group in GROUPS]
)


def random_rows(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    """Normal numbers of variance 1/shape[-1]."""
    draw = np.random.Generator(np.random.SFC64(seed)).standard_normal(shape, dtype=np.float32)
    draw *= np.float32(shape[-1] ** -0.5)
    return (draw.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else draw.astype(_NUMPY[dtype])


def expert(backend: CpuBackend, hidden: int, ffn: int, kind: Format) -> PackedExpert:
    shapes = ((ffn, hidden), (ffn, hidden), (hidden, ffn))
    stored = "bf16" if kind.integer else kind.dtype
    gate, up, down = (random_rows(shape, stored, 3 + i) for i, shape in enumerate(shapes))
    if kind.integer:
        return backend.quantize_expert(gate, up, down, kind.dtype, kind.group)
    return backend.pack_expert(gate, up, down, ComputeMode.FP32)


def matrix(backend: CpuBackend, n: int, k: int, kind: Format) -> PackedLinear:
    weight = random_rows((n, k), "bf16" if kind.integer else kind.dtype, 1)
    if kind.integer:
        return backend.quantize_linear(weight, kind.dtype, kind.group)
    return backend.pack_linear(weight, ComputeMode.FP32)


def copies(first: Packed, nbytes: int, least: int = 2) -> list[Packed]:
    """`first` and copies of it on pages of their own: at least `least`, `nbytes` together."""
    out = [first]
    while len(out) < least or len(out) * first.data.nbytes < nbytes:
        data = huge_bytes(first.data.nbytes)
        data[:] = first.data
        out.append(replace(first, data=data))
    return out


def blocks(packed: Sequence[PackedExpert | PackedLinear]) -> list[list[NDArray[np.uint8]]]:
    return [[each.data] for each in packed]


def raw(*arrays: Array) -> list[NDArray[np.uint8]]:
    """Their bytes."""
    return [array.reshape(-1).view(np.uint8) for array in arrays]
