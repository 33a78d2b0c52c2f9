"""Measures the quality of a checkpoint and of its packs: perplexity, distance, and repetition in long answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from colibri.coordinator.engine import EngineOptions
from colibri.coordinator.quality import Score, predictions, repeated_share, score
from colibri.coordinator.validation.requests import Draws, to_request
from colibri.deadline import Deadline
from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.reports import Log, Progress
from colibri.deployment.sizes import size
from colibri.errors import CheckpointError
from colibri.generation import Tokens
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from colibri.models.model import Model, default_mode, engine_numerics, open_checkpoint, open_model
from colibri.models.passages import LENGTH, read_passages, tokenize
from colibri.models.tokenizer import Tokenizer
from colibri.v1 import generation_pb2 as pb

#: Prompts are cut from the text; answers go on whatever the model would rather do.
PROMPT_TOKENS = 96


@dataclass(frozen=True, slots=True)
class Row:
    """One form of the model, and what it scored.

    name: "checkpoint", or the name of the pack.
    numerics: its engine_numerics_id.
    nbytes: bytes of its weights.
    score: perplexity, and the distance from the first form.
    repeated: mean share of 4-grams that an answer repeats, 0 to 1. None: not measured.
    """

    name: str
    numerics: str
    nbytes: int
    score: Score
    repeated: float | None


def measure_quality(
    folder: Path,
    packs: Sequence[Path],
    texts: Sequence[Path],
    *,
    prompts: int,
    new_tokens: int,
    progress: Progress,
    log: Log,
) -> tuple[str, list[Row]]:
    """Returns the SHA-256 of the texts, and a row for each form of the model, the checkpoint first.

    folder: the checkpoint.
    packs: packs of it.
    texts: files of text to predict.
    prompts: long answers to look for repetition in; 0: none.
    new_tokens: tokens of each of them.

    Raises CheckpointError for a pack of another checkpoint.
    """
    checkpoint = open_checkpoint(folder, "a measure of quality")
    passages_text, digest = read_passages(tuple(texts))
    length = min(LENGTH, checkpoint.config.max_positions)
    passages = tokenize(passages_text, Tokenizer.load(folder, checkpoint.config), length)
    forms: list[tuple[str, Model, ComputeMode]] = [("checkpoint", checkpoint, default_mode(checkpoint))]
    if default_mode(checkpoint) is ComputeMode.BF16:
        forms.append(("checkpoint", checkpoint, ComputeMode.FP32))
    for path in packs:
        found = open_model(path)
        if found.model_hash() != checkpoint.model_hash():
            raise CheckpointError.of(
                path, "model_hash", f"{checkpoint.model_hash()} (of {folder})", found.model_hash()
            )
        forms.append((path.name, found, default_mode(found)))
    rows, base = list[Row](), None
    backend = make_backend("cpu")
    try:
        for name, model, mode in forms:
            logits = predictions(model, backend, mode, passages, partial(progress, name))
            rows.append(_row(name, model, mode, score(logits, passages, base)))
            base = logits if base is None else base
    finally:
        backend.close()
    if prompts:
        cut = cut_prompts(passages, prompts)
        rows = [
            replace(row, repeated=_repeated(model, mode, cut, new_tokens, progress, log))
            for row, (_, model, mode) in zip(rows, forms, strict=True)
        ]
    return digest, rows


def cut_prompts(passages: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Evenly spread over the text."""
    ids = [token for passage in passages for token in passage]
    step = max((len(ids) - PROMPT_TOKENS) // count, 1)
    return [ids[at : at + PROMPT_TOKENS] for at in range(0, step * count, step)]


def table(rows: Sequence[Row]) -> list[str]:
    """Markdown."""
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
    return Row(name, engine_numerics(model, "cpu", mode).id, model.nbytes, found, None)


def _repeated(
    model: Model,
    mode: ComputeMode,
    prompts: Sequence[list[int]],
    new: int,
    progress: Progress,
    log: Log,
) -> float:
    """Mean over greedy answers of `new` tokens to the prompts, all at once, in this process."""
    room = len(prompts) * -(-(PROMPT_TOKENS + new) // 16) * 16
    engine = EngineOptions(kv_page=16, kv_tokens=room, max_running=len(prompts))
    options = DeploymentOptions(model.folder, workers=0, compute_mode=mode.value, engine=engine)
    with assemble(options, log, progress=progress) as deployment:
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
