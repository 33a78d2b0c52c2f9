"""make_backend: what is asked is what comes, or an error that names the argument."""

from __future__ import annotations

import os
from typing import Any

import pytest

from colibri.kernels.factory import make_backend


def test_cpu_takes_what_it_is_given() -> None:
    backend = make_backend("cpu", threads=2, isa="portable")
    assert (backend.name, backend.isa, backend.threads) == ("cpu", "portable", 2)
    backend.close()


def test_cpu_has_one_thread_per_cpu_by_default() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for cpus, expected in ((None, len(allowed)), (allowed[:1], 1)):
        backend = make_backend("cpu", cpus=cpus)
        assert backend.threads == expected
        backend.close()


def test_environment_chooses_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLIBRI_ISA", "portable")
    backend = make_backend("cpu", threads=1)
    assert backend.isa == "portable"
    backend.close()


def test_reference() -> None:
    backend = make_backend("reference", threads=1)
    assert (backend.name, backend.isa, backend.threads) == ("reference", "numpy", 1)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"name": "cuda"}, "name"),
        ({"name": "cpu", "isa": "sse9"}, "isa"),
        ({"name": "cpu", "threads": 0}, "threads"),
        ({"name": "cpu", "threads": 1, "cpus": [100000]}, "cpus"),
        ({"name": "reference", "threads": 2}, "threads"),
        ({"name": "reference", "isa": "avx2"}, "isa"),
        ({"name": "reference", "cpus": [0]}, "cpus"),
    ],
)
def test_errors(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=f"^{named}: expected"):
        make_backend(**arguments)
