"""Faults put into the kernels' sources one at a time: the systematic ones of mutations.py, and some chosen by hand.

A suite that misses one of them does not test what that line is for. What was caught is remembered by everything that
decides it, so that a run which was cut off goes on where it stopped."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from colibri.kernels.cuda.sources import FOLDER, headers, modules

from .build import CACHE, FLAGS, HEADER, ROOT, SANITIZER, build
from .equivalent import reason_of
from .mutations import mutations

_LIMIT_S = 60.0
#: How a probe ends that found a fault: it said so, the emulation or the system ended it, or it would never have ended.
#: Any other end is the probe's own failure, and no proof.
_FOUND = (3, -6, -8, -11, 124)
#: How it ends where a sanitizer says so.
_SANITIZER_FOUND = 77
_BOUNDS = (*SANITIZER, "-fsanitize=bounds", "-fno-sanitize-recover=bounds")
#: What does not compile is no program.
NO_PROGRAM = "does not compile"
#: Modules whose probes run the code of a header, the likeliest to notice first.
_USERS = {
    "tensor.cuh": ("tensor_int8", "tensor_bf16", "tensor_int4"),
    "layout.cuh": ("plain", "rows", "gate", "tensor_int8"),
    "math.cuh": ("plain", "sample", "gate", "rows"),
}
#: What decides whether a probe catches a fault, beside the sources themselves.
_SUPPORT = ("probes.py", "emulated.py", "build.py")

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
    """kind: of mutations.py, or 'chosen'. file: of source/; text: the whole file with the fault; modules: what is
    probed, until one catches it. equivalent: why no correct program could show it; empty: one could."""

    kind: str
    name: str
    file: str
    text: str
    modules: tuple[str, ...]
    equivalent: str = ""


@dataclass(frozen=True, slots=True)
class Tried:
    """missed: name and what its probe said."""

    caught: int
    missed: tuple[tuple[str, str], ...]
    not_compiled: int
    equivalent: int


def all_mutants() -> list[Mutant]:
    return [*_systematic(), *_chosen()]


def _systematic() -> Iterator[Mutant]:
    for path in sorted(FOLDER.glob("*.cu*")):
        if path.name == "seam.cuh":  # instructions, which the emulation replaces
            continue
        text = path.read_text()
        for each in mutations(text):
            column = each.start - text.rfind("\n", 0, each.start)
            name = f"{path.name}:{each.line}:{column} {each.kind}: {each.what} -> {each.instead or 'nothing'}"
            reason = reason_of(path.name, text, each.start, each.end)
            yield Mutant(each.kind, name, path.name, each.of(text), _modules(path.name), reason)


def _chosen() -> Iterator[Mutant]:
    for file, what, instead, module in _CHANGES:
        text = (FOLDER / file).read_text()
        if text.count(what) < 1:
            raise ValueError(f"{file}: expected the text {what!r}")
        shown = f"{what.splitlines()[0]} -> {instead.splitlines()[0] if instead else 'nothing'}"
        yield Mutant("chosen", f"{file}: {shown}", file, text.replace(what, instead, 1), (module,))


def survives(mutant: Mutant, folder: Path) -> str:
    """Empty when a probe of its modules fails, as one must, or a sanitizer finds it out of bounds; else what the last
    one said, or NO_PROGRAM."""
    said = ""
    for flags in ((), _BOUNDS):
        for name in mutant.modules:
            module = next(m for m in modules() if m.name == name)
            try:
                library = build(module, flags=flags, replaced={mutant.file: mutant.text}, folder=folder)
            except RuntimeError:
                return NO_PROGRAM
            done = run_sanitized(name, library) if flags else run_probe(name, library)
            library.unlink()
            if done.returncode in (_FOUND if not flags else (*_FOUND, _SANITIZER_FOUND)):
                return ""
            said = f"not caught, exit {done.returncode}: {done.stderr[-500:]}"
    return said


def try_all(told: Callable[[str], None] = lambda line: None, memory: Path | None = None) -> Tried:
    """Every mutant; those caught before by the same probes are not tried again. memory: folder of what was caught.

    Raises RuntimeError where a probe fails of the sources as they are: then a mutant's failure proves nothing."""
    for module in modules():
        for done in (
            run_probe(module.name, build(module)),
            run_sanitized(module.name, build(module, flags=_BOUNDS)),
        ):
            if done.returncode:
                raise RuntimeError(f"the probe of {module.name} fails without a fault: {done.stderr[-500:]}")
    memory = CACHE / "mutants" if memory is None else memory
    memory.mkdir(parents=True, exist_ok=True)
    every = all_mutants()
    missed: list[tuple[str, str]] = []
    caught = broken = 0
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for mutant, said in zip(
            every, pool.map(lambda m: _tried(m, memory, Path(place)), every), strict=True
        ):
            if said == NO_PROGRAM:
                broken += 1
            elif not said:
                caught += 1
            elif not mutant.equivalent:
                missed.append((mutant.name, said))
                told(f"missed: {mutant.name}: {said}")
    equivalent = len(every) - caught - broken - len(missed)
    return Tried(caught, tuple(missed), broken, equivalent)


def _tried(mutant: Mutant, memory: Path, place: Path) -> str:
    if mutant.equivalent:
        return mutant.equivalent
    digest = hashlib.sha256(_decisive().encode())
    for part in (mutant.file, mutant.text, *mutant.modules):
        digest.update(part.encode() + b"\0")
    kept = memory / digest.hexdigest()[:32]
    if kept.exists():
        return kept.read_text()
    with tempfile.TemporaryDirectory(dir=place) as own:
        said = survives(mutant, Path(own))
    if said in ("", NO_PROGRAM):  # a miss is tried again
        kept.write_text(said)
    return said


@cache
def _decisive() -> str:
    """A digest of all sources, the emulation and the probes."""
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    texts = (HEADER.read_text(), *(m.text for m in modules()), *headers().values())
    for part in (*FLAGS, *texts, *((folder / name).read_text() for name in _SUPPORT)):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


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


def run_sanitized(module: str, library: Path) -> subprocess.CompletedProcess[str]:
    """A probe of a library that was built with sanitizers: exit code 77 where they find something."""
    return run_probe(
        module,
        library,
        "--bare",
        LD_PRELOAD=_sanitizer(),
        ASAN_OPTIONS=f"detect_leaks=0:detect_stack_use_after_return=0:exitcode={_SANITIZER_FOUND}",
        UBSAN_OPTIONS=f"exitcode={_SANITIZER_FOUND}",
        PYTHONMALLOC="malloc",
    )


@cache
def _sanitizer() -> str:
    command = [os.environ.get("CXX", "g++"), "-print-file-name=libasan.so"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _modules(file: str) -> tuple[str, ...]:
    return _USERS.get(file, (file.removesuffix(".cu"),))
