"""Measure kernels against this machine's limits.

The limits are reading the same weights, and multiply-adds from registers. Each repetition of a kernel is followed by a
plain read of as many bytes of the same pages by the same threads; the peaks of this path's instructions are measured in
between. Weights are rotated through more memory than any cache holds. `of roof` is the share of what the lower of the
two limits allows.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from colibri.cli.parser import integer, number
from colibri.errors import ConfigError

if TYPE_CHECKING:
    from colibri.cli.kernel_bench.timing import Case, Point
    from colibri.cli.kernel_bench.weights import Format
    from colibri.kernels.cpu.backend import CpuBackend

KERNELS = ("top-k", "gate", "ffn", "linear", "head", "attention", "small", "sampling")
FORMATS = (
    "bf16", "fp16", "fp32", "int8g32", "int8g64", "int8g128", "int4g32", "int4g64", "int4g128",
)  # fmt: skip
_ROWS = (1, 2, 4, 8, 16, 17, 64, 512)
_USUAL_FORMATS = ("bf16", "fp16", "fp32", "int8g128", "int4g64")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", nargs="+", choices=KERNELS, default=list(KERNELS), metavar="KERNEL",
        help=f"which to measure, of {', '.join(KERNELS)}; small: norm, RoPE, embedding, grouping, merge (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--rows", nargs="+", type=integer(1, 1 << 16), default=list(_ROWS), metavar="N",
        help="rows of ffn, linear, head, gate and small",
    )  # fmt: skip
    parser.add_argument(
        "--formats", nargs="+", choices=FORMATS, default=list(_USUAL_FORMATS), metavar="DTYPE",
        help=f"of weights, of {', '.join(FORMATS)}",
    )  # fmt: skip
    parser.add_argument(
        "--shape", nargs=2, type=integer(1, 1 << 20), default=[2048, 7168], metavar=("HIDDEN", "FFN"),
        help="of an expert; linear has the shapes of an attention layer of this width",
    )  # fmt: skip
    parser.add_argument(
        "--threads", type=integer(1, 1024), default=argparse.SUPPRESS, metavar="N",
        help="that compute (default: one per CPU)",
    )  # fmt: skip
    parser.add_argument(
        "--isa", default=argparse.SUPPRESS, metavar="PATH",
        help="instruction path: avx512bf16, avx512, avx2 or portable (default: COLIBRI_ISA, else the best)",
    )  # fmt: skip
    parser.add_argument(
        "--rotate-mb",
        type=integer(1, 1 << 20),
        default=512,
        metavar="MB",
        help="weights that calls go through",
    )
    parser.add_argument(
        "--seconds", type=number(0, 3600), default=1.0, metavar="S", help="for each set of weights, at least"
    )
    parser.add_argument(
        "--repetitions", type=integer(1, 10000), default=7, metavar="N", help="of each point, at least"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.kernel_bench import report, timing
    from colibri.kernels.cpu.backend import CpuBackend

    try:
        backend = CpuBackend(getattr(args, "threads", None), getattr(args, "isa", None))
    except ValueError as error:
        raise ConfigError("--isa", "an instruction path of this machine", error) from error
    try:
        head = {
            "isa": backend.isa,
            "threads": backend.threads,
            "cpus": len(os.sched_getaffinity(0)),
            "rotate_mb": args.rotate_mb,
            "peak_gop_s": {kind: rate / 1e9 for kind, rate in timing.limits(backend).items()},
        }
        if not args.json:
            print(report.headline(head))
        points: list[Point] = []
        for kernel in args.only:
            for cases in _cases(kernel, backend, args):
                measured = timing.measure(backend, cases, args.seconds, args.repetitions)
                points += measured
                if not args.json:
                    print("\n".join(report.lines(measured)), flush=True)
        if args.json:
            print(json.dumps({**head, "points": [point.document() for point in points]}))
    finally:
        backend.close()
    return 0


def _cases(kernel: str, backend: CpuBackend, args: argparse.Namespace) -> Iterator[list[Case]]:
    from colibri.cli.kernel_bench import dense, ffn, gate
    from colibri.kernels.api import ComputeMode

    hidden, rotate, kinds = args.shape[0], args.rotate_mb << 20, _formats(args.formats)
    if kernel == "top-k":
        return gate.top_k(backend)
    if kernel == "gate":
        return gate.whole(backend, hidden, args.rows)
    if kernel == "ffn":
        return ffn.cases(backend, (hidden, args.shape[1]), kinds, args.rows, rotate)
    if kernel == "linear":
        return dense.linear(backend, [(2 * hidden, hidden), (hidden, hidden)], kinds, args.rows, rotate)
    if kernel == "head":
        return dense.linear(backend, [(32000, hidden)], kinds, args.rows, rotate, kernel="head")
    if kernel == "attention":
        steps = ((1, 511), (1, 4095), (128, 0), (512, 0))
        return dense.attention(backend, steps, ComputeMode.BF16, rotate)
    if kernel == "small":
        return dense.small(backend, hidden, args.rows, ComputeMode.BF16)
    return dense.sampling(backend, 32000)


def _formats(names: Sequence[str]) -> list[Format]:
    from colibri.cli.kernel_bench.weights import FORMATS as KNOWN

    return [kind for name in names for kind in KNOWN if kind.name == name]
