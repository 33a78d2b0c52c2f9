"""How a matrix is stored: a dtype and, for integers, how many elements share a scale."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.errors import InvalidInput
from colibri.kernels.api import GROUPS

#: Formats that every backend computes with; the last two have scales.
STORED_DTYPES = ("bf16", "fp16", "fp32", "int8", "int4")
_QUANTISED = ("int8", "int4")


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a matrix is stored. Raises InvalidInput for anything else.

    dtype: one of STORED_DTYPES.
    group: elements of K that share a scale (32, 64 or 128); 0 without scales.
    """

    dtype: str
    group: int = 0

    def __post_init__(self) -> None:
        if self.dtype not in STORED_DTYPES:
            raise InvalidInput("dtype", f"one of {', '.join(STORED_DTYPES)}", repr(self.dtype))
        allowed = GROUPS if self.quantised else (0,)
        if self.group not in allowed or isinstance(self.group, bool):
            raise InvalidInput(
                "group", f"{' or '.join(map(str, allowed))} with {self.dtype}", repr(self.group)
            )

    @property
    def quantised(self) -> bool:
        return self.dtype in _QUANTISED

    @property
    def name(self) -> str:
        """Its name in numerics ids: 'bf16', 'int4g64'."""
        return f"{self.dtype}g{self.group}" if self.group else self.dtype

    @property
    def takes_bf16_rows(self) -> bool:
        """Whether compute mode bf16 can use it: rows are bf16 then, and plain weights must be too."""
        return self.quantised or self.dtype == "bf16"
