"""Make a pack of a checkpoint: weights in another format, laid out so that loading is reading."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.cli.parser import integer

if TYPE_CHECKING:
    from colibri.cli.progress import Loading
    from colibri.models.checkpoint import Checkpoint
    from colibri.models.packs.build import CalibrationRun, PackReport
    from colibri.models.weight_format import WeightFormat

DTYPES = ("bf16", "fp16", "fp32", "int8", "int4")
GROUP = 64
#: Where it is not the experts' format: what loses little beside what they lose (docs/quality.md).
DENSE = {"int8": "bf16", "int4": "int8"}

ABOUT = """
A pack takes the place of the checkpoint in every verb. The router's gates and the norms keep their precision, whatever
the format of the rest.

OUT appears when the pack is whole. Interrupted or killed, the same command goes on where it stood (in OUT.unfinished).
The same weights and options give the same bytes, and so the same pack hash, on any machine.

int4 is calibrated: the model runs over a text first, and inputs that are large there are kept more exactly.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", type=Path, metavar="MODEL", help="Hugging Face folder of a Mixtral checkpoint, or `demo`"
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
        help="format of attention, head and embeddings (default: as the experts; bf16 with int8, int8 with int4)",
    )
    parser.add_argument(
        "--calibration-text",
        type=Path,
        action="append",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="with --dtype int4: texts whose tokens tell which inputs matter (default: the project's own)",
    )
    parser.add_argument(
        "--no-calibration", action="store_true", help="with --dtype int4: take all inputs as equal"
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
    from colibri.models.packs.build import build_pack

    experts, dense = _formats(args)
    checkpoint = open_checkpoint(args.model, "packing")
    threads = getattr(args, "threads", None) or len(os.sched_getaffinity(0))
    with Loading() as loading:
        report = build_pack(
            checkpoint,
            args.out,
            experts,
            dense,
            calibration=_calibration(args, checkpoint, threads, loading),
            threads=threads,
            progress=lambda done, total: loading.update("packing", done, total),
        )
    print(json.dumps(asdict(report)) if args.json else "\n".join(_text(args.out, report, experts, dense)))
    return 0


def _formats(args: argparse.Namespace) -> tuple[WeightFormat, WeightFormat]:
    from colibri.errors import ConfigError
    from colibri.models.weight_format import WeightFormat

    dense_dtype = getattr(args, "dense_dtype", DENSE.get(args.dtype, args.dtype))
    dtypes = (args.dtype, dense_dtype)
    quantised = [dtype for dtype in dtypes if dtype in ("int8", "int4")]
    if hasattr(args, "group") and not quantised:
        raise ConfigError("--group", "int8 or int4 with it", f"--dtype {args.dtype}")
    group = getattr(args, "group", GROUP)
    experts, dense = (WeightFormat(dtype, group if dtype in quantised else 0) for dtype in dtypes)
    return experts, dense


def _calibration(
    args: argparse.Namespace, checkpoint: Checkpoint, threads: int, loading: Loading
) -> CalibrationRun | None:
    from colibri.cli.terminal import say
    from colibri.coordinator.calibration import calibrate
    from colibri.errors import ConfigError
    from colibri.kernels.factory import make_backend
    from colibri.models.packs.build import CalibrationRun
    from colibri.models.packs.manifest import Calibration
    from colibri.models.packs.weights import Importance
    from colibri.models.passages import IMPORTANCE_TEXTS, LENGTH, MOST, read_passages, tokenize
    from colibri.models.text_names import TOKENIZER_NAME
    from colibri.models.tokenizer import Tokenizer

    texts = getattr(args, "calibration_text", None)
    for flag, given in (("--calibration-text", texts), ("--no-calibration", args.no_calibration)):
        if given and args.dtype != "int4":
            raise ConfigError(flag, "--dtype int4 with it", f"--dtype {args.dtype}")
    if texts and args.no_calibration:
        raise ConfigError("--no-calibration", "no --calibration-text with it", str(texts[0]))
    if args.dtype != "int4" or args.no_calibration:
        return None
    if not (checkpoint.folder / TOKENIZER_NAME).exists():
        if texts:
            raise ConfigError("--calibration-text", f"a model with {TOKENIZER_NAME}", "one without")
        say(f"no {TOKENIZER_NAME}: int4 without calibration, every input counts alike")
        return None
    passages, digest = read_passages(tuple(texts) if texts else IMPORTANCE_TEXTS)
    length = min(LENGTH, checkpoint.config.max_positions)
    ids = tokenize(passages, Tokenizer.load(checkpoint.folder, checkpoint.config), length, MOST)
    if not ids:
        raise ConfigError("--calibration-text", "a text of some tokens", "hardly any")

    def run() -> tuple[Calibration, Mapping[tuple[int, int], Importance]]:
        backend = make_backend("cpu", threads=threads)
        try:
            found = calibrate(
                checkpoint, backend, ids, lambda done, total: loading.update("calibrating", done, total)
            )
        finally:
            backend.close()
        if found.never_chosen:
            say(
                f"{found.never_chosen} experts were chosen by none of the {found.tokens} tokens of the calibration "
                "text: their layer's inputs stand for theirs"
            )
        return Calibration(digest, found.tokens, found.never_chosen), found.by_expert

    return CalibrationRun(digest, run)


def _text(out: Path, report: PackReport, experts: WeightFormat, dense: WeightFormat) -> list[str]:
    from colibri.deployment.sizes import size

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
