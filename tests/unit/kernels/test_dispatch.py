"""Which instruction path a backend takes, and what it says when it cannot."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from colibri.kernels import _native
from colibri.kernels.api import ComputeMode
from colibri.kernels.cpu.backend import CpuBackend, supported_isas

ALL = ("avx512bf16", "avx512", "avx2", "portable")
#: What /proc/cpuinfo must list for a path (the kernel lists a feature only when it saves its registers).
FLAGS = {
    "avx512bf16": {"avx512_bf16", "avx512f", "avx512bw", "avx512vl", "avx512dq"},
    "avx512": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c"},
    "avx2": {"avx2", "fma", "f16c"},
    "portable": set[str](),
}


@pytest.fixture(autouse=True)
def no_choice_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLIBRI_ISA", raising=False)


def test_supported_paths_are_the_machines() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split(":")[1].split()}
    assert supported_isas() == [isa for isa in ALL if FLAGS[isa] <= flags]


def test_the_best_path_is_the_default() -> None:
    backend = CpuBackend()
    assert (backend.isa, backend.fallback, backend.threads) == (supported_isas()[0], "", 1)
    backend.close()


@pytest.mark.parametrize("isa", supported_isas())
def test_environment_and_argument_choose(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    monkeypatch.setenv("COLIBRI_ISA", isa)
    for backend, expected in ((CpuBackend(), isa), (CpuBackend(isa="portable"), "portable")):
        assert backend.isa == expected
        backend.close()
    monkeypatch.setenv("COLIBRI_ISA", "")
    backend = CpuBackend()
    assert backend.isa == supported_isas()[0]
    backend.close()


def test_unknown_paths_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ValueError, match=r"^isa: expected one of avx512bf16, avx512, avx2, portable, got 'sse9'$"
    ):
        CpuBackend(isa="sse9")
    monkeypatch.setenv("COLIBRI_ISA", "AVX2")
    with pytest.raises(ValueError, match=r"^COLIBRI_ISA: expected one of .*, got 'AVX2'$"):
        CpuBackend()


@pytest.mark.skipif(set(supported_isas()) == set(ALL), reason="this machine runs every path")
def test_unsupported_paths_are_named() -> None:
    missing = next(isa for isa in ALL if isa not in supported_isas())
    with pytest.raises(
        ValueError, match=f"^isa: expected an instruction path that this machine runs .*'{missing}'"
    ):
        CpuBackend(isa=missing)


@pytest.mark.skipif("avx512bf16" not in supported_isas(), reason="no vdpbf16ps here")
def test_a_failed_self_test_falls_back() -> None:
    for asked in (None, "avx512bf16"):
        backend = _native.Backend(1, asked, None, True)
        assert backend.isa == "avx512"
        assert backend.fallback.startswith("avx512bf16: the start-up self-test")
        backend.close()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"threads": 0}, "threads: expected 1 to 1024, got 0"),
        ({"threads": 1025}, "threads: expected 1 to 1024, got 1025"),
        ({"cpus": [-1]}, "cpus: expected CPUs that this process may use, got -1"),
        ({"cpus": [4096]}, "cpus: expected CPUs that this process may use, got 4096"),
    ],
)
def test_bad_arguments_are_named(arguments: dict[str, object], text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}$"):
        CpuBackend(**arguments)  # type: ignore[arg-type]


def test_threads_of_none_is_one_per_cpu() -> None:
    cpus = sorted(os.sched_getaffinity(0))
    for backend, expected in ((CpuBackend(None), len(cpus)), (CpuBackend(None, cpus=cpus[:1]), 1)):
        assert backend.threads == expected
        backend.close()


def test_several_paths_live_side_by_side() -> None:
    backends = [CpuBackend(2, isa) for isa in supported_isas()]
    one = np.ones((3, 70), np.float32)
    for _ in range(3):
        for backend in backends:
            assert (
                backend.linear(one, backend.pack_linear(one, ComputeMode.FP32)).tolist() == [[70.0] * 3] * 3
            )
    for backend in backends:
        backend.close()
