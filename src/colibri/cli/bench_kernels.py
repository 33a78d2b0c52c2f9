"""Measure kernels against this machine's limits.

The limits are reading the same weights, and multiply-adds from registers. Each repetition of a kernel is followed by a
plain read of as many bytes of the same pages by the same threads; the peaks of this path's instructions are measured in
between. Weights are rotated through more memory than any cache holds. `of roof` is the share of what the lower of the
two limits allows.
"""

from __future__ import annotations

import argparse
import json

from colibri.cli.parser import integer, number

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
    from colibri.bench.kernels import report
    from colibri.bench.kernels.timing import Point
    from colibri.bench.kernels.whole import KernelBench, measured, open_bench

    bench = KernelBench(
        kernels=args.only,
        rows=args.rows,
        formats=args.formats,
        hidden=args.shape[0],
        ffn=args.shape[1],
        threads=getattr(args, "threads", None),
        isa=getattr(args, "isa", None),
        rotate_bytes=args.rotate_mb << 20,
        seconds=args.seconds,
        repetitions=args.repetitions,
    )
    with open_bench(bench) as (backend, head):
        if not args.json:
            print(report.headline(head))
        points: list[Point] = []
        for found in measured(bench, backend):
            points += found
            if not args.json:
                print("\n".join(report.lines(found)), flush=True)
        if args.json:
            print(json.dumps({**head, "points": [point.document() for point in points]}))
    return 0
