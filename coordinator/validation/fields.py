"""Checks of fields that several parts of a request share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from colibri.errors import InvalidInput
from colibri.kernels.api import U32
from colibri.models.dtypes import fp32

MAX_TEXT_BYTES = 1 << 20
#: Ids converted at once: NumPy holds the interpreter's lock while it reads a list.
_SLICE = 4096


def checked_ids(field: str, ids: Sequence[int], vocab: int) -> U32:
    """uint32; each is below `vocab`. Raises InvalidInput naming the first that is not."""
    array = np.empty(len(ids), dtype=np.uint32)
    for at in range(0, len(ids), _SLICE):
        array[at : at + _SLICE] = ids[at : at + _SLICE]
    return check_in_vocab(field, array, vocab)


def check_in_vocab(field: str, array: U32, vocab: int) -> U32:
    """The array itself. Raises InvalidInput naming the first id that is not below `vocab`."""
    wrong = np.flatnonzero(array >= vocab)
    if len(wrong):
        raise InvalidInput(f"{field}[{wrong[0]}]", f"a token id from 0 to {vocab - 1}", int(array[wrong[0]]))
    return array


def check_bytes(field: str, text: str) -> None:
    """Raises InvalidInput for a text that is longer than any prompt may be."""
    size = len(text.encode())
    if size > MAX_TEXT_BYTES:
        raise InvalidInput(field, f"at most {MAX_TEXT_BYTES} bytes", f"{size} bytes")


def in_range(field: str, value: float, low: float, high: float, *, or_zero: bool = False) -> float:
    """Of a field of 32 bits: so are its bounds, or 1e-6 itself would lie below 1e-6. Raises InvalidInput unless
    low <= value <= high (NaN never is)."""
    if not (fp32(low) <= value <= fp32(high) or (or_zero and value == 0)):
        raise InvalidInput(field, f"{'0, or ' if or_zero else ''}{low:g} to {high:g}", value)
    return value
