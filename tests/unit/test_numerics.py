"""Ids name what decides bits: the format and group of quantised experts, and the dtype of the rows they quantise."""

from __future__ import annotations

import pytest

from colibri.numerics import NUMERICS_REVISION, EngineNumerics, ExpertNumerics, MixedNumerics


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


CPU = ExpertNumerics.of("cpu", "bf16", "bf16")
CUDA = ExpertNumerics.of("cuda", "bf16", "bf16", "mma-sm90")


def test_an_id_is_read_back() -> None:
    int4 = ExpertNumerics.of_quantised("cuda", "fp32", "int4", 32, "mma-sm90+int4-cpu")
    for each in (CPU, CUDA, int4):
        assert ExpertNumerics.parse(each.id) == each
    for text in ("", "cpu", CPU.id + "/x", CPU.id.replace("r1", "r01"), f"mixed({CPU.id}|{CUDA.id})"):
        with pytest.raises(ValueError, match="expert_numerics_id: expected"):
            ExpertNumerics.parse(text)


def test_a_mix_has_an_id_of_its_own() -> None:
    homes = (CPU.id, CUDA.id, CPU.id)
    mix = MixedNumerics((CPU, CUDA), homes)
    assert mix.id.startswith(f"mixed({CPU.id}|{CUDA.id})/homes=")
    assert MixedNumerics((CUDA, CPU), homes).id == mix.id, "whoever is named first"
    others = {MixedNumerics((CPU, CUDA), (CUDA.id, CPU.id, CPU.id)).id, CPU.id, CUDA.id}
    assert mix.id not in others
    assert (mix.deployment_mode, mix.weight_format) == ("bf16", "bf16")
    assert EngineNumerics(mix, "bf16", "bf16").id == f"{mix.id}+dense=bf16/kv=bf16/gate=fp32"


@pytest.mark.parametrize(
    ("kinds", "homes", "text"),
    [
        ((CPU,), (CPU.id,), "kinds: expected several that differ, got cpu/"),
        ((CPU, CPU), (CPU.id,), "kinds: expected several that differ"),
        (
            (CPU, ExpertNumerics.of("cuda", "fp32", "bf16")),
            (CPU.id,),
            "cuda/fp32.*: wire_dtype: expected 'bf16' as of cpu/.*, got 'fp32'",
        ),
        ((CPU, CUDA), (CPU.id,), "homes: expected all of cpu/"),
    ],
)
def test_what_is_no_mix(kinds: tuple[ExpertNumerics, ...], homes: tuple[str, ...], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        MixedNumerics(kinds, homes)
