"""Show what a checkpoint holds and how its experts would be placed, without reading weights."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from colibri.cli import options
from colibri.cli.parser import integer
from colibri.cli.sizes import size

if TYPE_CHECKING:
    from colibri.cli.model_report import ModelReport
    from colibri.models.checkpoint import Checkpoint


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument(
        "--workers", type=integer(0, 256), default=2, metavar="N", help="workers to place experts on"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.model_report import report
    from colibri.models.checkpoint import Checkpoint

    checkpoint = Checkpoint.open(args.model)
    result = report(checkpoint, args.workers)
    print(json.dumps(_document(checkpoint, result)) if args.json else _text(checkpoint, result))
    return 0


def _document(checkpoint: Checkpoint, result: ModelReport) -> dict[str, object]:
    return {
        "model": str(checkpoint.folder),
        "layout": checkpoint.layout.value,
        "config": asdict(checkpoint.config),
        **asdict(result),
    }


def _text(checkpoint: Checkpoint, result: ModelReport) -> str:
    config = checkpoint.config
    window = "full attention" if config.sliding_window is None else f"window {config.sliding_window}"
    lines = [
        str(checkpoint.folder),
        f"  mixtral, {config.layers} layers, hidden {config.hidden}, vocabulary {config.vocab}, "
        f"{config.dtype}, {'tied' if config.tied else 'own'} head",
        f"  attention  {config.heads} heads, {config.kv_heads} KV heads of {config.head_dim}, {window}, "
        f"{config.max_positions} positions, RoPE base {config.rope_theta:g}",
        f"  experts    {config.experts} per layer, top {config.top_k}, FFN {config.ffn}, "
        f"{size(result.expert_nbytes)} each, stored as {checkpoint.layout.value}",
        "",
        f"  {'part':<10} {'parameters':>16} {'bytes':>10}",
    ]
    for part, count in result.parameters.items():
        if count:
            lines.append(f"  {part:<10} {count:>16,} {size(result.nbytes[part]):>10}")
    total = sum(result.parameters.values())
    lines += [
        f"  {'total':<10} {total:>16,} {size(sum(result.nbytes.values())):>10}",
        f"  {'per token':<10} {result.active_parameters:>16,}",
        "",
        "  KV cache   "
        + ", ".join(
            f"{size(count)} per token in {mode} mode" for mode, count in result.kv_bytes_per_token.items()
        ),
    ]
    for share in result.workers:
        lines.append(f"  worker {share.name:<4} {share.experts} experts, {size(share.nbytes)}")
    return "\n".join(lines)
