"""Faults put into the kernels' sources one at a time: every barrier and wait deleted, bounds and indices changed.

A suite that misses one of them does not test what that line is for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colibri.kernels.cuda.sources import FOLDER, modules

from .build import ROOT, build

_LIMIT_S = 60.0
#: How a probe ends that found a fault: it said so, the emulation or the system ended it, or it would never have ended.
#: Any other end is the probe's own failure, and no proof.
_FOUND = (3, -6, -11, 124)
_GONE = re.compile(r"__syncthreads\(\);|__syncwarp\(\);|copy_wait<[^>]*>\(\);")

#: A barrier between blocks, not inside one: blocks run one after another here, so its loss cannot show.
_BETWEEN_BLOCKS = "    __threadfence();\n    __syncthreads();"

#: (file, what, instead, modules it shows in): bounds, indices, orders. Each text stands once in its file.
_CHANGES = (
    ("rows.cu", "if (at >= (u64)rows * hidden) return;", "", "rows"),
    ("rows.cu", "if (at < count) x[at]", "x[at]", "rows"),
    ("rows.cu", "t == first ? term", "t <= first + 1 ? term", "rows"),
    ("rows.cu", "if (at >= (u64)rows * vectors * half) return;", "", "rows"),
    ("plain.cu", "row < count && at < k", "row <= count && at < k", "plain"),
    (
        "plain.cu",
        "if (row >= count || at >= out_stride) continue;",
        "if (at >= out_stride) continue;",
        "plain",
    ),
    ("plain.cu", "min(even - k0, (u32)PLAIN_K) / 2", "min(even - k0, (u32)PLAIN_K) / 2 - 1", "plain"),
    ("gate.cu", "if (lane == 31) sums[warp]", "if (lane == 30) sums[warp]", "gate"),
    ("gate.cu", "if (at < count) atomicAdd", "atomicAdd", "gate"),
    ("gate.cu", "a == b && i < j", "a == b && i > j", "gate"),
    ("attention.cu", "min(position - start, KEYS - 1)", "min(position - start + 1, KEYS - 1)", "attention"),
    ("attention.cu", "max(first_key - start, 0)", "max(first_key - start + 1, 0)", "attention"),
    ("attention.cu", "key % page) * head_dim + d;", "key % page) * head_dim;", "attention"),
    ("sample.cu", "keys[kept - 1]", "keys[kept]", "sample"),
    ("sample.cu", "if (other <= i) continue;", "", "sample"),
    ("tensor.cuh", "row < live && at < p.x_stride", "at < p.x_stride + 32", "tensor_bf16"),
    ("tensor.cuh", "if (row >= live) continue;", "", "tensor_bf16"),
    ("tensor.cuh", "if (column >= n) return;", "", "tensor_bf16"),
    (
        "tensor.cuh",
        "s % STAGES * bytes;\n    const u32* rows = (const u32*)(stage + weight",
        "0;\n    const u32* rows = (const u32*)(stage + weight",
        "tensor_int4",
    ),
    ("tensor.cuh", "t % 2 * 4", "0", "tensor_int4"),
    ("tensor.cuh", "0x4342), __byte_perm(sign", "0x4140), __byte_perm(sign", "tensor_int8"),
    ("tensor.cuh", "(k0 + STEP) % group == 0 || k0", "k0", "tensor_int8"),
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """file: of source/; text: the whole file with the fault; module: what is probed."""

    name: str
    file: str
    text: str
    module: str


def all_mutants() -> list[Mutant]:
    return [*_deletions(), *_changes()]


def _deletions() -> Iterator[Mutant]:
    for path in sorted(FOLDER.glob("*.cu*")):
        if path.name == "seam.cuh":
            continue
        text = path.read_text()
        for found in _GONE.finditer(text):
            if text[: found.end()].endswith(_BETWEEN_BLOCKS):
                continue
            line = text.count("\n", 0, found.start()) + 1
            name = f"{path.name}:{line} without {found[0].rstrip(';')}"
            changed = text[: found.start()] + ";" + text[found.end() :]
            yield Mutant(name, path.name, changed, _module(path.name))


def _changes() -> Iterator[Mutant]:
    for file, what, instead, module in _CHANGES:
        text = (FOLDER / file).read_text()
        if text.count(what) < 1:
            raise ValueError(f"{file}: expected the text {what!r}")
        shown = f"{what.splitlines()[0]} -> {instead.splitlines()[0] if instead else 'nothing'}"
        yield Mutant(f"{file}: {shown}", file, text.replace(what, instead, 1), module)


def survives(mutant: Mutant, folder: Path) -> str:
    """Empty when the probe of its module fails, as it must; else what it said."""
    module = next(m for m in modules() if m.name == mutant.module)
    library = build(module, replaced={mutant.file: mutant.text}, folder=folder)
    done = run_probe(mutant.module, library)
    library.unlink()
    return "" if done.returncode in _FOUND else f"not caught, exit {done.returncode}: {done.stderr[-500:]}"


def run_probe(
    module: str, library: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.support.cuda.probes", module, str(library), *arguments]
    try:
        return subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
        )
    except subprocess.TimeoutExpired as late:  # a fault that makes a kernel endless is seen, too
        return subprocess.CompletedProcess(command, 124, "", f"{late}")


def _module(file: str) -> str:
    return "tensor_int8" if file == "tensor.cuh" else file.removesuffix(".cu")
