"""The kernels' checks find what they are for: faults put into the sources fail them; AddressSanitizer finds nothing in
the sources as they are, but what is wrong on purpose it does."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from colibri.kernels.cuda.sources import modules
from tests.support.cuda.build import SANITIZER, build
from tests.support.cuda.mutants import NO_PROGRAM, all_mutants, run_sanitized, survives

pytestmark = pytest.mark.slow  # a compiler for each mutant
#: Of each kind, so many of all (`make reach TOPIC=cuda` tries every one).
_SAMPLE = {"barrier": 2, "guard": 1, "comparison": 1, "by one": 1, "index": 1, "chosen": 1}


def sanitized(name: str, **replaced: str) -> subprocess.CompletedProcess[str]:
    module = next(m for m in modules() if m.name == name)
    return run_sanitized(name, build(module, flags=SANITIZER, replaced=replaced or None))


@pytest.mark.parametrize("kind", list(_SAMPLE))
def test_faults_are_caught(kind: str, tmp_path: Path) -> None:
    found = [mutant for mutant in all_mutants() if mutant.kind == kind and not mutant.equivalent]
    for mutant in random.sample(found, _SAMPLE[kind]):
        assert survives(mutant, tmp_path) in ("", NO_PROGRAM), mutant.name


@pytest.mark.parametrize("name", [module.name for module in modules()])
def test_nothing_out_of_bounds(name: str) -> None:
    done = sanitized(name)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_read_out_of_bounds_is_found() -> None:
    text = next(m.text for m in modules() if m.name == "rows")
    wrong = text.replace(
        "if (at < count) x[at] = __fadd_rn(x[at], y[at]);", "if (at < count) x[at] += y[at + 1];"
    )
    assert wrong != text
    done = sanitized("rows", **{"rows.cu": wrong})
    assert done.returncode
    assert "heap-buffer-overflow" in done.stderr, done.stderr[-2000:]
    assert "rows.cu" in done.stderr
