"""check_finite against NumPy's own isfinite, on patterns of any bits."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.errors import CheckpointError
from colibri.models.finite import check_finite

SIZES = (0, 1, 2, 15, 16, 17, 31, 33, (1 << 17) + 5)


def finite(values: np.ndarray, dtype: str) -> np.ndarray:
    if dtype == "bf16":
        return np.asarray(np.isfinite((values.astype(np.uint32) << 16).view(np.float32)))
    return np.asarray(np.isfinite(values))


@pytest.mark.parametrize(("dtype", "kind"), [("bf16", "u2"), ("fp16", "f2"), ("fp32", "f4")])
def test_it_agrees_with_numpy_on_any_bits(dtype: str, kind: str) -> None:
    rng = np.random.default_rng()
    unsigned = np.dtype(kind.replace("f", "u"))
    found = set()
    for size in SIZES * 20:
        bits = rng.integers(0, 1 << 8 * unsigned.itemsize, size, dtype=unsigned)
        if rng.random() < 0.5:
            bits &= np.array(~(1 << {"u2": 7, "f2": 10, "f4": 23}[kind]), np.int64).astype(unsigned)
        if size and rng.random() < 0.3:
            at, value = int(rng.integers(size)), rng.choice([np.nan, np.inf, -np.inf])
            odd = np.array([value], np.float32)
            bits[at] = (
                odd.view(np.uint32)[0] >> 16
                if dtype == "bf16"
                else odd.astype(np.dtype(kind)).view(unsigned)[0]
            )
        values = bits.view(np.dtype(kind))
        bad = np.flatnonzero(~finite(values, dtype))
        found.add(len(bad) > 0)
        if not len(bad):
            check_finite(values, dtype, "w")
            continue
        with pytest.raises(CheckpointError, match=rf"^w: element \[{bad[0]}\]: expected a finite value"):
            check_finite(values, dtype, "w")
    assert found == {False, True}


def test_the_place_is_told_in_the_matrix_and_what_stands_there() -> None:
    matrix = np.zeros((3, 5), np.float32)
    matrix[1, 2] = -np.inf
    with pytest.raises(CheckpointError, match=r"element \[1, 2\]: .* got Inf \(0xff800000\)$"):
        check_finite(matrix, "fp32", "w")
    matrix[1, 2] = np.nan
    with pytest.raises(CheckpointError, match=r"element \[1, 2\]: .* got NaN \(0x7fc00000\)$"):
        check_finite(matrix, "fp32", "w")
