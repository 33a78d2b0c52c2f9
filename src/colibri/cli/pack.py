"""Make a pack of a checkpoint: weights in another format, laid out so that loading is reading."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.cli.parser import integer

if TYPE_CHECKING:
    from colibri.models.pack_build import PackReport
    from colibri.models.weight_format import WeightFormat

DTYPES = ("bf16", "fp16", "fp32", "int8", "int4")
GROUP = 64

ABOUT = """
A pack takes the place of the checkpoint in every verb. The router's gates and the norms keep their precision, whatever
the format of the rest.

OUT appears when the pack is whole. Interrupted or killed, the same command goes on where it stood (in OUT.unfinished).
The same weights and options give the same bytes, and so the same pack hash, on any machine.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="Hugging Face folder of a Mixtral checkpoint"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make; must not exist")
    parser.add_argument("--dtype", choices=DTYPES, required=True, help="format of the experts")
    parser.add_argument(
        "--group",
        type=int,
        choices=(32, 64, 128),
        default=argparse.SUPPRESS,
        help=f"weights that share a scale, with int8 and int4 (default: {GROUP})",
    )
    parser.add_argument(
        "--dense-dtype",
        choices=DTYPES,
        default=argparse.SUPPRESS,
        help="format of attention, head and embeddings (default: as the experts, bf16 with int8 and int4)",
    )
    parser.add_argument(
        "--threads",
        type=integer(1, 1024),
        default=argparse.SUPPRESS,
        metavar="N",
        help="experts under way at once (default: one per CPU)",
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.progress import Loading
    from colibri.models.model import open_checkpoint
    from colibri.models.pack_build import build_pack

    experts, dense = _formats(args)
    checkpoint = open_checkpoint(args.model, "packing")
    with Loading() as loading:
        report = build_pack(
            checkpoint,
            args.out,
            experts,
            dense,
            threads=getattr(args, "threads", None) or len(os.sched_getaffinity(0)),
            progress=lambda done, total: loading.update("packing", done, total),
        )
    print(json.dumps(asdict(report)) if args.json else "\n".join(_text(args.out, report, experts, dense)))
    return 0


def _formats(args: argparse.Namespace) -> tuple[WeightFormat, WeightFormat]:
    from colibri.errors import ConfigError
    from colibri.models.weight_format import WeightFormat

    plain_dense = "bf16" if args.dtype in ("int8", "int4") else args.dtype
    dtypes = (args.dtype, getattr(args, "dense_dtype", plain_dense))
    quantised = [dtype for dtype in dtypes if dtype in ("int8", "int4")]
    if hasattr(args, "group") and not quantised:
        raise ConfigError("--group", "int8 or int4 with it", f"--dtype {args.dtype}")
    group = getattr(args, "group", GROUP)
    experts, dense = (WeightFormat(dtype, group if dtype in quantised else 0) for dtype in dtypes)
    return experts, dense


def _text(out: Path, report: PackReport, experts: WeightFormat, dense: WeightFormat) -> list[str]:
    from colibri.cli.sizes import size

    share = report.nbytes / report.source_nbytes
    name, worst = report.worst_expert
    exact = "exact, as the checkpoint has them"
    lost = f"relative RMS error {report.experts_error:.2e}, at most {worst:.2e} ({name})" if worst else exact
    dense_lost = f"relative RMS error {report.dense_error:.2e}" if report.dense_error else exact
    kept = f", {report.kept} of them by an earlier run" if report.kept else ""
    return [
        f"{out}",
        f"  pack hash  {report.pack_hash}",
        f"  size       {size(report.nbytes)}, {share:.0%} of the checkpoint's {size(report.source_nbytes)}",
        f"  experts    {experts.name}: {lost}",
        f"  dense      {dense.name}: {dense_lost}",
        f"  made       {report.blobs} blobs in {report.seconds:.1f} s{kept}",
    ]
