"""Deployments over tiny random Mixtrals and requests to them, for the lines of this topic."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from colibri.coordinator.engine import Engine, EngineOptions
from colibri.coordinator.request import GenerationRequest
from colibri.coordinator.validation.requests import Draws, to_request
from colibri.deadline import Deadline
from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.running import Deployment
from colibri.generation import Finished, Prompt, TokenLogprobs, Tokens
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.v1 import generation_pb2 as pb

TINY = RandomMixtral(
    hidden=64,
    ffn=96,
    layers=3,
    experts=8,
    top_k=2,
    heads=4,
    kv_heads=2,
    vocab=512,
    max_positions=2048,
    seed=21,
)
_TIMEOUT_S = 120.0
_numbers = itertools.count()


@dataclass(slots=True)
class Answer:
    """All that one choice brought."""

    ids: list[int] = field(default_factory=list)
    receipts: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    text: str = ""
    finished: Finished | None = None
    prompt: Prompt | None = None


@contextmanager
def deployed(
    model: RandomMixtral = TINY, mode: str | None = None, engine: EngineOptions | None = None
) -> Iterator[tuple[Path, Deployment]]:
    """The model's folder and the engine over it in this process, without workers."""
    options = engine or EngineOptions(kv_tokens=16384)
    with tempfile.TemporaryDirectory() as name:
        folder = random_mixtral(Path(name, "model"), model)
        built = DeploymentOptions(folder, 0, compute_mode=mode, engine=options)
        with assemble(built, lambda text: None) as deployment:
            yield folder, deployment


def ask(deployment: Deployment, message: pb.GenerateRequest) -> GenerationRequest:
    """Through the service's own validation."""
    draws = Draws(seed=lambda: 0, request_id=lambda: f"bench-{next(_numbers)}")
    return to_request(message, deployment.limits, deployment.tokenizer, Deadline.after(_TIMEOUT_S), draws)


def answers(engine: Engine, request: GenerationRequest) -> list[Answer]:
    """Read to the end, one per choice."""
    return gather(engine.submit(request).events())


def gather(events: Iterator[object]) -> list[Answer]:
    found: dict[int, Answer] = {}
    prompt: Prompt | None = None
    for event in events:
        if isinstance(event, Prompt):
            prompt = event
        elif isinstance(event, Tokens | Finished):
            answer = found.setdefault(event.choice, Answer(prompt=prompt))
            if isinstance(event, Finished):
                answer.finished = event
                continue
            answer.ids += event.ids
            answer.receipts += event.receipts
            answer.logprobs += event.logprobs
            answer.text += event.text
    return [found[choice] for choice in sorted(found)]


def ids(values: Sequence[int]) -> pb.TokenIds:
    return pb.TokenIds(ids=values)
