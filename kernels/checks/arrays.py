"""Argument checks with errors that name the argument, what was expected and what came."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike

from colibri.kernels.api import (
    GROUPS,
    MAX_TOP_K,
    Array,
    ComputeMode,
    GatePrecision,
    PackedExpert,
    PackedLinear,
)

#: Width of one axis: a number, or a name where any width is right.
Axis = int | str


def check_array(
    name: str, array: Array, dtypes: DTypeLike | tuple[DTypeLike, ...], shape: Sequence[Axis]
) -> None:
    """Raises TypeError for a wrong type, ValueError for a wrong shape or memory that is not C-contiguous."""
    allowed = [np.dtype(d) for d in (dtypes if isinstance(dtypes, tuple) else (dtypes,))]
    expected = f"{' or '.join(d.name for d in allowed)} [{', '.join(str(a) for a in shape)}]"
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name}: expected an array {expected}, got {type(array).__name__}")
    got = f"{array.dtype.name} {list(array.shape)}"
    if array.dtype not in allowed:
        raise TypeError(f"{name}: expected {expected}, got {got}")
    fits = array.ndim == len(shape) and all(
        isinstance(want, str) or want == have for want, have in zip(shape, array.shape, strict=True)
    )
    if not fits:
        raise ValueError(f"{name}: expected {expected}, got {got}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name}: expected C-contiguous memory, got strides {array.strides}")


def check_below(name: str, values: Array, limit: int, of: str) -> None:
    """Raises ValueError for the first value outside 0 .. limit - 1."""
    bad = np.flatnonzero((values < 0) | (values >= limit))
    if bad.size:
        at = int(bad[0])
        raise ValueError(f"{name}[{at}]: expected 0 .. {limit - 1} ({of}), got {int(values.flat[at])}")


def check_mode(mode: ComputeMode) -> None:
    if not isinstance(mode, ComputeMode):
        raise TypeError(f"mode: expected a ComputeMode, got {mode!r}")


def check_format(name: str, packed: PackedLinear | PackedExpert, *, quantised: bool = True) -> None:
    """A known dtype and its group. Raises ValueError naming the field."""
    allowed = ("bf16", "fp16", "fp32", "int8", "int4") if quantised else ("bf16", "fp16", "fp32")
    if packed.dtype not in allowed:
        raise ValueError(f"{name}.dtype: expected {' or '.join(allowed)}, got {packed.dtype!r}")
    groups = GROUPS if packed.dtype in ("int8", "int4") else (0,)
    if packed.group not in groups:
        raise ValueError(
            f"{name}.group: expected {' or '.join(map(str, groups))} with {packed.dtype}, got {packed.group!r}"
        )


def check_rows_for(x: Array, weight: PackedLinear, *, wide: bool) -> None:
    """x is [rows, k] fp32, or bf16 where the weight is bf16, int8 or int4 (or, with `wide`, always)."""
    narrow = wide or weight.dtype in ("bf16", "int8", "int4")
    dtypes = (np.float32, np.uint16) if narrow else (np.float32,)
    check_array("x", x, dtypes, ("rows", weight.k))


def check_top_k(k: int, experts: int, name: str) -> None:
    """name: of the argument that has so many experts."""
    most = min(MAX_TOP_K, experts)
    if not 1 <= k <= most:
        raise ValueError(f"k: expected 1 .. {most} (experts, at most {MAX_TOP_K}), got {k}")
    if experts > 65536:
        raise ValueError(f"{name}: expected at most 65536 experts, got {experts}")


def check_precision(precision: GatePrecision) -> None:
    if not isinstance(precision, GatePrecision):
        raise TypeError(f"precision: expected a GatePrecision, got {type(precision).__name__}")
