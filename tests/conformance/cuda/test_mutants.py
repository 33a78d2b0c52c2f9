"""The kernels' checks find what they are for: faults put into the sources fail them; AddressSanitizer finds nothing in
the sources as they are, but what is wrong on purpose it does."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from colibri.kernels.cuda.sources import modules
from tests.support.cuda.build import SANITIZER, build
from tests.support.cuda.mutants import all_mutants, run_probe, survives

#: Of each kind, so many of all (`make reach TOPIC=cuda` tries every one).
_SAMPLE = {"__syncthreads": 3, "__syncwarp": 1, "copy_wait": 1, "->": 3}


def sanitized(name: str, **replaced: str) -> tuple[str, Path, dict[str, str]]:
    module = next(m for m in modules() if m.name == name)
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    environment = {
        "LD_PRELOAD": found.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
        "PYTHONMALLOC": "malloc",
    }
    return name, build(module, flags=SANITIZER, replaced=replaced or None), environment


@pytest.mark.parametrize("kind", list(_SAMPLE))
def test_faults_are_caught(kind: str, tmp_path: Path) -> None:
    found = [mutant for mutant in all_mutants() if kind in mutant.name]
    assert found
    for mutant in random.sample(found, min(_SAMPLE[kind], len(found))):
        assert not survives(mutant, tmp_path), mutant.name


@pytest.mark.parametrize("name", [module.name for module in modules()])
def test_nothing_out_of_bounds(name: str) -> None:
    module, library, environment = sanitized(name)
    done = run_probe(module, library, "--bare", **environment)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_read_out_of_bounds_is_found() -> None:
    text = next(m.text for m in modules() if m.name == "rows")
    wrong = text.replace(
        "if (at < count) x[at] = __fadd_rn(x[at], y[at]);", "if (at < count) x[at] += y[at + 1];"
    )
    assert wrong != text
    module, library, environment = sanitized("rows", **{"rows.cu": wrong})
    done = run_probe(module, library, "--bare", **environment)
    assert done.returncode
    assert "heap-buffer-overflow" in done.stderr, done.stderr[-2000:]
    assert "rows.cu" in done.stderr
