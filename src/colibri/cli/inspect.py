"""Show what a checkpoint or pack holds and how its experts would be placed, without loading weights."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

from colibri.cli import options
from colibri.cli.parser import integer
from colibri.cli.terminal import shown
from colibri.deployment.sizes import size

if TYPE_CHECKING:
    from colibri.cli.model_report import ModelReport
    from colibri.cli.text_report import TextReport
    from colibri.models.model import Model

ABOUT = """
Reads headers, JSON files and a few KiB of samples for the model's hash. Numerics ids are those of the `cpu` backend:
what two processes compare before they trust each other's numbers, and what an answer's receipts stand on.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument(
        "--workers", type=integer(0, 256), default=2, metavar="N", help="workers to place experts on"
    )
    parser.add_argument(
        "--replicas", type=integer(1, 256), default=1, metavar="N", help="workers that hold each expert"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.model_report import report
    from colibri.cli.text_report import text_report
    from colibri.models.model import open_model

    checkpoint = open_model(args.model)
    model = report(checkpoint, args.workers, args.replicas)
    text = text_report(checkpoint)
    warnings = [*_weight_warnings(checkpoint, model), *text.warnings]
    if args.json:
        print(json.dumps(_document(checkpoint, model, text) | {"warnings": warnings}))
    else:
        print(shown("\n".join(_text(checkpoint, model, text, warnings))))
    return 0


def _weight_warnings(checkpoint: Model, model: ModelReport) -> Iterator[str]:
    from colibri.cli.checks.machine import Machine

    config = checkpoint.config
    if config.dtype != "bf16" and not checkpoint.pack_hash:
        yield (
            f"weights are {config.dtype}, so the compute mode is fp32 unless --compute-mode bf16 rounds them; "
            "bf16 mode is faster"
        )
    idle = [share.name for share in model.workers if not share.experts]
    if idle:
        yield f"more workers than experts: {', '.join(idle)} would hold none"
    needed, free = model.loaded_nbytes[model.compute_mode], Machine().meminfo().get("MemAvailable", 0)
    if free and needed > free:
        yield f"the weights need {size(needed)}, {size(free)} of this machine's memory are available"


def _document(checkpoint: Model, model: ModelReport, text: TextReport) -> dict[str, object]:
    return {
        "model": str(checkpoint.folder),
        "model_hash": checkpoint.model_hash(),
        "pack": _pack_document(checkpoint),
        "layout": _layout(checkpoint),
        "config": asdict(checkpoint.config),
        **asdict(model),
        **asdict(text),
    }


def _text(checkpoint: Model, model: ModelReport, text: TextReport, warnings: list[str]) -> Iterator[str]:
    config = checkpoint.config
    window = "full attention" if config.sliding_window is None else f"window {config.sliding_window}"
    yield str(checkpoint.folder)
    yield (
        f"  mixtral, {config.layers} layers, hidden {config.hidden}, vocabulary {config.vocab}, "
        f"{config.dtype}, {'tied' if config.tied else 'own'} head"
    )
    yield (
        f"  attention  {config.heads} heads, {config.kv_heads} KV heads of {config.head_dim}, {window}, "
        f"{config.max_positions} positions, RoPE base {config.rope_theta:g}"
    )
    yield (
        f"  experts    {config.experts} per layer, top {config.top_k}, FFN {config.ffn}, "
        f"{size(model.expert_nbytes)} each, stored as {_layout(checkpoint)}"
    )
    yield f"  hash       {checkpoint.model_hash()}"
    if found := _pack_document(checkpoint):
        yield f"  pack       {found['pack_hash']}, dense part in {found['dense']}, {_calibrated(found)}"
    yield ""
    yield from _sizes(model)
    yield ""
    yield from _memory(checkpoint, model)
    yield ""
    yield from _tensors(model)
    yield ""
    yield from _words(text)
    yield ""
    for mode, ids in model.numerics.items():
        default = ", the default here" if mode == model.compute_mode else ""
        yield f"  {mode} mode{default}"
        yield f"    experts  {ids.expert_numerics_id}"
        yield f"    engine   {ids.engine_numerics_id}"
    if warnings:
        yield ""
        yield from (f"  warning: {warning}" for warning in warnings)


def _layout(model: Model) -> str:
    from colibri.models.packs.pack import Pack

    return model.manifest.experts.name if isinstance(model, Pack) else model.layout.value


def _pack_document(model: Model) -> dict[str, object] | None:
    """None for a checkpoint."""
    from colibri.models.packs.pack import Pack

    if not isinstance(model, Pack):
        return None
    manifest = model.manifest
    return {
        "pack_hash": model.pack_hash,
        "experts": manifest.experts.name,
        "dense": manifest.dense.name,
        "calibration": None if manifest.calibration is None else asdict(manifest.calibration),
    }


def _calibrated(found: Mapping[str, object]) -> str:
    calibration = found["calibration"]
    if not isinstance(calibration, dict):
        return "not calibrated"
    return f"calibrated on {calibration['tokens']} tokens"


def _sizes(model: ModelReport) -> Iterator[str]:
    yield f"  {'part':<10} {'parameters':>16} {'bytes':>10}"
    for part, count in model.parameters.items():
        if count:
            yield f"  {part:<10} {count:>16,} {size(model.nbytes[part]):>10}"
    yield f"  {'total':<10} {sum(model.parameters.values()):>16,} {size(sum(model.nbytes.values())):>10}"
    yield f"  {'per token':<10} {model.active_parameters:>16,}"


def _memory(checkpoint: Model, model: ModelReport) -> Iterator[str]:
    kv = model.kv_bytes_per_token
    context = checkpoint.config.max_positions
    yield "  KV cache   " + ", ".join(f"{size(count)} per token in {mode} mode" for mode, count in kv.items())
    yield f"             {size(kv[model.compute_mode] * context)} for a whole context of {context} tokens"
    for share in model.workers:
        modes = ", ".join(f"{size(count)} in {mode} mode" for mode, count in share.loaded_nbytes.items())
        yield f"  worker {share.name:<4} {share.experts} experts, {size(share.nbytes)} stored; loaded {modes}"


def _tensors(model: ModelReport) -> Iterator[str]:
    width = max(len(group.name) for group in model.tensors)
    yield f"  {'tensor':<{width}}  count  shape"
    for group in model.tensors:
        yield f"  {group.name:<{width}}  {group.count:>5}  {list(group.shape)}"


def _words(text: TextReport) -> Iterator[str]:
    facts = text.tokenizer
    if facts is None:
        yield "  tokenizer      none"
    else:
        yield (
            f"  tokenizer      {facts.vocab} ids, {facts.special} of them special; begins with "
            f"{repr(facts.bos) if facts.adds_bos else 'nothing added'}, end token {facts.eos!r}  ({facts.source})"
        )
    yield f"  chat template  {text.chat_template or 'none'}"
    for name, default in text.generation.items():
        value = list(default.value) if isinstance(default.value, tuple) else default.value
        yield f"  {name:<18} {'-' if value is None else value}  ({default.source})"
