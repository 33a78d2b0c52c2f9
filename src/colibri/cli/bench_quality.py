"""Measure quality: perplexity of a checkpoint and of its packs, how far apart they are, who falls into loops."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path

from colibri.cli.parser import integer
from colibri.cli.terminal import say

ABOUT = """
Predictions over a fixed text in the public domain (the Declaration of Independence, the Gettysburg Address, a chapter
of Pride and Prejudice), or over --text. KL is the mean over its tokens of KL(checkpoint || pack), in nats.

The repeated share is that of 4-grams which stood before in the same answer, over long greedy answers to prompts cut
from the text.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="Hugging Face folder of a Mixtral checkpoint, or `demo`: the demo model",
    )
    parser.add_argument("packs", type=Path, nargs="*", metavar="PACK", help="packs of it")
    parser.add_argument(
        "--text",
        type=Path,
        action="append",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="texts to predict, passages separated by lines of %%%% (default: the project's own)",
    )
    parser.add_argument(
        "--prompts", type=integer(0, 1000), default=20, metavar="N", help="long answers to look for loops in"
    )
    parser.add_argument(
        "--new-tokens", type=integer(16, 1 << 16), default=256, metavar="N", help="tokens of each of them"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    from colibri.bench.quality import measure_quality, table
    from colibri.cli.progress import Loading
    from colibri.models.passages import QUALITY_TEXTS

    folder = Path(args.model)
    with Loading() as loading:
        digest, rows = measure_quality(
            folder,
            args.packs,
            tuple(getattr(args, "text", QUALITY_TEXTS)),
            prompts=args.prompts,
            new_tokens=args.new_tokens,
            progress=loading.update,
            log=say,
        )
    if args.json:
        print(json.dumps({"text_sha256": digest, "rows": [asdict(row) for row in rows]}))
    else:
        print("\n".join(table(rows)))
    return 0
