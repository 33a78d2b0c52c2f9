"""Matrix products in float64, rounded to fp32 once, and the embedding look-up."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import F32, U32, Array, PackedLinear
from colibri.kernels.arithmetic.floats import F64, to_f32, widen
from colibri.kernels.checks.arrays import check_array, check_below, check_format, check_rows_for
from colibri.kernels.layout.packing import unpack_linear
from colibri.kernels.reference import quantised


def embed(table: PackedLinear, ids: U32) -> F32:
    check_format("table", table)
    check_array("ids", ids, np.uint32, ("rows",))
    check_below("ids", ids, table.n, "vocabulary")
    if quantised.is_quantised(table):
        return quantised.dequantize_linear(table)[ids]
    return widen(unpack_linear(table)[ids]).astype(np.float32)


def linear(x: Array, weight: PackedLinear) -> F32:
    check_format("weight", weight)
    check_rows_for(x, weight, wide=False)
    if quantised.is_quantised(weight):
        return to_f32(quantised.product(x, quantised.unpack_linear(weight), weight.group))
    return to_f32(product(widen(x), widen(unpack_linear(weight))))


def product(x: F64, weight: F64) -> F64:
    """x [rows, k] times weight [n, k] transposed; row by row, so that neighbours never change a row's
    result."""
    y = np.zeros((len(x), len(weight)))
    with np.errstate(over="ignore", invalid="ignore"):
        for row, values in enumerate(x):
            y[row] = weight @ values
    return y
