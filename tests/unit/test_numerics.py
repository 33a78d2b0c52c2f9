"""Ids name what decides bits: the format and group of quantised experts, and the dtype of the rows they quantise."""

from __future__ import annotations

import pytest

from colibri.numerics import NUMERICS_REVISION, ExpertNumerics


def test_plain_experts() -> None:
    r = NUMERICS_REVISION
    assert ExpertNumerics.of("cpu", "bf16", "fp16").id == f"cpu/bf16/w=bf16/wire=bf16/any/r{r}"
    assert ExpertNumerics.of("cpu", "fp32", "fp16").id == f"cpu/fp32/w=fp16/wire=fp32/any/r{r}"


def test_quantised_experts() -> None:
    r = NUMERICS_REVISION
    assert (
        ExpertNumerics.of_quantised("cpu", "bf16", "int4", 64).id == f"cpu/int8/w=int4g64/wire=bf16/any/r{r}"
    )
    ids = {
        ExpertNumerics.of_quantised("cpu", mode, dtype, group).id
        for mode in ("fp32", "bf16")
        for dtype in ("int8", "int4")
        for group in (32, 64, 128)
    }
    assert len(ids) == 12


@pytest.mark.parametrize(
    ("field", "mode", "dtype", "group"),
    [("compute_mode", "int8", "int8", 64), ("dtype", "bf16", "bf16", 64), ("group", "bf16", "int8", 0)],
)
def test_unknown_formats(field: str, mode: str, dtype: str, group: int) -> None:
    with pytest.raises(ValueError, match=f"{field}: expected one of .*, got"):
        ExpertNumerics.of_quantised("cpu", mode, dtype, group)
