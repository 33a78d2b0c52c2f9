"""Of which numerics a deployment's experts are, from what its workers are; what is refused, what is said."""

from __future__ import annotations

from collections import Counter

import pytest

from colibri.deployment.devices import WorkerKinds
from colibri.deployment.mix import Mix, attached_mix, mix_of
from colibri.errors import ConfigError, InvalidInput
from colibri.numerics import ExpertNumerics, MixedNumerics

CPU = ExpertNumerics.of("cpu", "bf16", "bf16")
CUDA = ExpertNumerics.of("cuda", "bf16", "bf16", "mma-sm90")
OF_CPU, OF_CUDA = ("cpu", "any"), ("cuda", "mma-sm90")


def numerics(kind: tuple[str, str]) -> ExpertNumerics:
    return ExpertNumerics.of(kind[0], "bf16", "bf16", kind[1])


def test_one_kind_is_no_mix() -> None:
    for kinds in (
        WorkerKinds(OF_CPU, {}),
        WorkerKinds(OF_CPU, {"w0": OF_CPU}),
        WorkerKinds(OF_CUDA, {"w0": OF_CUDA}),
    ):
        found = mix_of(numerics, kinds, 8)
        assert found == Mix(numerics(kinds.usual), numerics(kinds.usual).id)
        assert found.lines(["w0"]) == []


def test_a_mix_and_what_is_said_of_it() -> None:
    kinds = WorkerKinds(OF_CPU, {"w0": OF_CUDA, "w1": OF_CPU, "w2": OF_CPU, "w3": OF_CPU})
    found = mix_of(numerics, kinds, 8)
    assert isinstance(found.numerics, MixedNumerics)
    assert Counter(found.numerics.homes) == {CPU.id: 6, CUDA.id: 2}
    assert found.homes is not None
    assert found.homes.of("w0") == CUDA.id
    assert found.homes.of("w9") == CPU.id, "who joins"
    told, warning = found.lines(list(kinds.workers))
    assert told == (f"MIXED NUMERICS: w1, w2, w3: {CPU.id}, 6 of 8 experts; w0: {CUDA.id}, 2 of 8 experts")
    assert found.numerics.id in warning
    with pytest.raises(InvalidInput, match="replicas: expected at most 1"):
        found.spread(2, 8, list(kinds.workers), 2)
    swapped = WorkerKinds(OF_CPU, {"w0": OF_CPU, "w1": OF_CUDA, "w2": OF_CPU, "w3": OF_CPU})
    assert mix_of(numerics, swapped, 8).numerics == found.numerics, "whichever worker it is"


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        (
            {"a": CPU.id, "b": CPU.id},
            "--mixed-numerics: expected workers of several expert_numerics_ids, got cpu/",
        ),
        ({"a": CPU.id, "b": "?"}, "--expert: expected workers whose numerics can be told, got b: "),
        (
            {"a": CPU.id, "b": ExpertNumerics.of("cuda", "fp32", "bf16").id},
            r"--expert: expected workers with wire_dtype bf16, got fp32 \(b: cuda/fp32",
        ),
        (
            {"a": CPU.id, "b": ExpertNumerics.of_quantised("cuda", "bf16", "int4", 64).id},
            "--expert: expected workers with weight_format bf16, got int4g64",
        ),
    ],
)
def test_workers_that_cannot_serve_together(ids: dict[str, str], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        attached_mix(CPU, ids, 8)
