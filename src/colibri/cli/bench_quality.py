"""Measure quality: perplexity of a checkpoint and of its packs, how far apart they are, who falls into loops."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.cli.parser import integer
from colibri.cli.terminal import say

if TYPE_CHECKING:
    from colibri.cli.progress import Loading
    from colibri.coordinator.quality import Score
    from colibri.kernels.api import ComputeMode
    from colibri.models.model import Model

ABOUT = """
Predictions over a fixed text in the public domain (the Declaration of Independence, the Gettysburg Address, a chapter
of Pride and Prejudice), or over --text. KL is the mean over its tokens of KL(checkpoint || pack), in nats.

The repeated share is that of 4-grams which stood before in the same answer, over long greedy answers to prompts cut
from the text.
"""
#: Prompts are cut from the text; answers go on whatever the model would rather do.
PROMPT_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Row:
    """A form of the model: what it is called, its engine numerics id, bytes of its weights, what it scored."""

    name: str
    numerics: str
    nbytes: int
    score: Score
    repeated: float | None


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
    from colibri.cli.progress import Loading
    from colibri.cli.sources import demo_model
    from colibri.coordinator.quality import predictions, score
    from colibri.deployment.phases import Phases
    from colibri.errors import CheckpointError
    from colibri.kernels.api import ComputeMode
    from colibri.kernels.factory import make_backend
    from colibri.models.model import default_mode, open_checkpoint, open_model
    from colibri.models.passages import LENGTH, QUALITY_TEXTS, read_passages, tokenize
    from colibri.models.tokenizer import Tokenizer

    folder = demo_model(Phases()) if args.model == "demo" else Path(args.model)
    checkpoint = open_checkpoint(folder, "a measure of quality")
    texts, digest = read_passages(tuple(getattr(args, "text", QUALITY_TEXTS)))
    length = min(LENGTH, checkpoint.config.max_positions)
    passages = tokenize(texts, Tokenizer.load(folder, checkpoint.config), length)
    forms: list[tuple[str, Model, ComputeMode]] = [("checkpoint", checkpoint, default_mode(checkpoint))]
    if default_mode(checkpoint) is ComputeMode.BF16:
        forms.append(("checkpoint", checkpoint, ComputeMode.FP32))
    for path in args.packs:
        found = open_model(path)
        if found.model_hash() != checkpoint.model_hash():
            raise CheckpointError.of(
                path, "model_hash", f"{checkpoint.model_hash()} (of {folder})", found.model_hash()
            )
        forms.append((path.name, found, default_mode(found)))
    rows, base = list[Row](), None
    backend = make_backend("cpu")
    try:
        with Loading() as loading:
            for name, model, mode in forms:
                logits = predictions(model, backend, mode, passages, partial(loading.update, name))
                rows.append(_row(name, model, mode, score(logits, passages, base)))
                base = logits if base is None else base
    finally:
        backend.close()
    if args.prompts:
        prompts = cut_prompts(passages, args.prompts)
        with Loading() as loading:
            rows = [
                replace(row, repeated=_repeated(model, mode, prompts, args.new_tokens, loading))
                for row, (_, model, mode) in zip(rows, forms, strict=True)
            ]
    if args.json:
        print(json.dumps({"text_sha256": digest, "rows": [asdict(row) for row in rows]}))
    else:
        print("\n".join(table(rows)))
    return 0


def cut_prompts(passages: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Evenly spread over the text."""
    ids = [token for passage in passages for token in passage]
    step = max((len(ids) - PROMPT_TOKENS) // count, 1)
    return [ids[at : at + PROMPT_TOKENS] for at in range(0, step * count, step)]


def table(rows: Sequence[Row]) -> list[str]:
    """Markdown."""
    from colibri.deployment.sizes import size

    lines = [
        f"{rows[0].score.tokens} tokens of text; KL against the first row",
        "",
        "| weights | engine numerics | size | perplexity | mean KL, nats | same first choice | repeated 4-grams |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        found = row.score
        kl = "-" if found.kl is None else f"{found.kl:.2e} ± {found.kl_error:.0e}"
        same = "-" if found.same_top is None else f"{found.same_top:.1%}"
        repeated = "-" if row.repeated is None else f"{row.repeated:.1%}"
        lines.append(
            f"| {row.name} | `{row.numerics}` | {size(row.nbytes)} | {found.perplexity:.3f} | {kl} | {same} "
            f"| {repeated} |"
        )
    return lines


def _row(name: str, model: Model, mode: ComputeMode, found: Score) -> Row:
    from colibri.models.model import engine_numerics

    return Row(name, engine_numerics(model, "cpu", mode).id, model.nbytes, found, None)


def _repeated(
    model: Model, mode: ComputeMode, prompts: Sequence[list[int]], new: int, loading: Loading
) -> float:
    """Mean over greedy answers of `new` tokens to the prompts, all at once, in this process."""
    from colibri.coordinator.engine import EngineOptions
    from colibri.coordinator.quality import repeated_share
    from colibri.coordinator.validate import Draws, to_request
    from colibri.deadline import Deadline
    from colibri.deployment.assemble import assemble
    from colibri.deployment.options import DeploymentOptions
    from colibri.generation import Tokens
    from colibri.v1 import generation_pb2 as pb

    room = len(prompts) * -(-(PROMPT_TOKENS + new) // 16) * 16
    engine = EngineOptions(kv_page=16, kv_tokens=room, max_running=len(prompts))
    options = DeploymentOptions(model.folder, workers=0, compute_mode=mode.value, engine=engine)
    with assemble(options, say, progress=loading.update) as deployment:
        handles = []
        for index, prompt in enumerate(prompts):
            message = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt))
            message.sampling.temperature = 0
            message.stopping.max_tokens = new
            message.stopping.ignore_eos = True
            draws = Draws(seed=lambda: 0, request_id=f"quality-{index}".strip)
            request = to_request(message, deployment.limits, deployment.tokenizer, Deadline(), draws)
            handles.append(deployment.engine.submit(request))
        shares = [
            repeated_share(
                [token for event in handle.events() if isinstance(event, Tokens) for token in event.ids]
            )
            for handle in handles
        ]
    return sum(shares) / len(shares)
