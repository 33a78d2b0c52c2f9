"""A whole run of `colibri bench kernels`: which kernels, with which shapes and formats, one after another."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from colibri.bench.kernels import dense, ffn, gate, timing
from colibri.bench.kernels.timing import Case, Point
from colibri.bench.kernels.weights import FORMATS, Format
from colibri.errors import ConfigError
from colibri.kernels.api import ComputeMode
from colibri.kernels.cpu.backend import CpuBackend

_VOCAB = 32000
#: (rows of the step, positions before it) of attention.
_STEPS = ((1, 511), (1, 4095), (128, 0), (512, 0))


@dataclass(frozen=True, slots=True)
class KernelBench:
    """What is measured, and for how long.

    kernels: of "top-k", "gate", "ffn", "linear", "head", "attention", "small", "sampling".
    rows: rows of ffn, linear, head, gate and small.
    formats: names of weight formats, as "bf16" or "int4g64".
    hidden, ffn: widths of an expert.
    threads: threads that compute. None: one for each CPU.
    isa: instruction path. None: the best that this machine has.
    rotate_bytes: bytes of weights that calls go through, more than any cache holds.
    seconds: least time for each set of weights.
    repetitions: least repetitions of each point.
    """

    kernels: Sequence[str]
    rows: Sequence[int]
    formats: Sequence[str]
    hidden: int
    ffn: int
    threads: int | None
    isa: str | None
    rotate_bytes: int
    seconds: float
    repetitions: int


@contextlib.contextmanager
def open_bench(bench: KernelBench) -> Iterator[tuple[CpuBackend, dict[str, object]]]:
    """Yields the backend, and what is told of the machine. Raises ConfigError for a path that it does not have."""
    try:
        backend = CpuBackend(bench.threads, bench.isa)
    except ValueError as error:
        raise ConfigError("--isa", "an instruction path of this machine", error) from error
    with contextlib.closing(backend):
        yield (
            backend,
            {
                "isa": backend.isa,
                "threads": backend.threads,
                "cpus": len(os.sched_getaffinity(0)),
                "rotate_mb": bench.rotate_bytes >> 20,
                "peak_gop_s": {kind: rate / 1e9 for kind, rate in timing.limits(backend).items()},
            },
        )


def measured(bench: KernelBench, backend: CpuBackend) -> Iterator[list[Point]]:
    """Yields the points of each set of weights as they are measured."""
    for kernel in bench.kernels:
        for cases in _cases(kernel, bench, backend):
            yield timing.measure(backend, cases, bench.seconds, bench.repetitions)


def _cases(kernel: str, bench: KernelBench, backend: CpuBackend) -> Iterator[list[Case]]:
    hidden, rows, rotate = bench.hidden, bench.rows, bench.rotate_bytes
    kinds = _formats(bench.formats)
    if kernel == "top-k":
        return gate.top_k(backend)
    if kernel == "gate":
        return gate.whole(backend, hidden, rows)
    if kernel == "ffn":
        return ffn.cases(backend, (hidden, bench.ffn), kinds, rows, rotate)
    if kernel == "linear":
        return dense.linear(backend, [(2 * hidden, hidden), (hidden, hidden)], kinds, rows, rotate)
    if kernel == "head":
        return dense.linear(backend, [(_VOCAB, hidden)], kinds, rows, rotate, kernel="head")
    if kernel == "attention":
        return dense.attention(backend, _STEPS, ComputeMode.BF16, rotate)
    if kernel == "small":
        return dense.small(backend, hidden, rows, ComputeMode.BF16)
    return dense.sampling(backend, _VOCAB)


def _formats(names: Sequence[str]) -> list[Format]:
    return [kind for name in names for kind in FORMATS if kind.name == name]
