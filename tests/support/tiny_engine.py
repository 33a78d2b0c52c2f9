"""Tiny random Mixtrals and engines over them, all in this process: what the coordinator's suites run on."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from colibri.coordinator.decoder import DecoderStack
from colibri.coordinator.decoder_weights import DecoderWeights
from colibri.coordinator.engine import Engine, EngineOptions
from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.moe_layer import MoeLayer, MoeResult
from colibri.coordinator.request import GenerationRequest
from colibri.deadline import Clock, Deadline
from colibri.generation import Event, Finished, Prompt, TokenLogprobs, Tokens
from colibri.kernels.api import F32, U32, Array, Backend, ComputeMode, PackedExpert, SamplingParams, UnitBatch
from colibri.models.checkpoint import Checkpoint
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.models.tokenizer import Tokenizer
from colibri.numerics import EngineNumerics, ExpertNumerics
from colibri.placement import Directory, Membership, spread
from colibri.router_service.executor import LocalExecutor
from colibri.router_service.router import MoeRouter

TINY = RandomMixtral(
    hidden=32, ffn=48, layers=2, experts=4, top_k=2, heads=4, kv_heads=2, vocab=300, max_positions=512, seed=3
)
NUMERICS = EngineNumerics(ExpertNumerics("test", "bf16", "bf16", "bf16"), "bf16", "bf16")
#: Bound of every wait of a test.
WAIT_S = 20.0


@dataclass(slots=True)
class TinyModel:
    """A packed model: engines over it share its weights."""

    checkpoint: Checkpoint
    backend: Backend
    mode: ComputeMode
    stack: DecoderStack
    router: MoeRouter
    tokenizer: Tokenizer

    @classmethod
    def open(cls, folder: Path, backend: Backend, mode: ComputeMode) -> TinyModel:
        checkpoint = Checkpoint.open(folder)
        config = checkpoint.config
        experts: dict[tuple[int, int], PackedExpert] = {}
        for layer, expert in itertools.product(range(config.layers), range(config.experts)):
            weights = checkpoint.expert(layer, expert)
            experts[layer, expert] = backend.pack_expert(weights.gate, weights.up, weights.down, mode)

        def run_units(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
            chosen = [experts[layer, int(expert)] for expert in batch.group_expert]
            rows = backend.expert_units(x, chosen, batch)
            return rows, np.zeros(len(rows), dtype=np.uint32)

        gates = [backend.pack_linear(checkpoint.gate(layer), mode) for layer in range(config.layers)]
        placement = spread(config.layers, config.experts, ["local"])
        router = MoeRouter(
            backend, mode, gates, config.top_k, Directory(Membership(placement, {})), LocalExecutor(run_units)
        )
        stack = DecoderStack(DecoderWeights.load(checkpoint, backend, mode), backend)
        return cls(checkpoint, backend, mode, stack, router, Tokenizer.load(folder, config))

    @contextmanager
    def engine(
        self,
        options: EngineOptions | None = None,
        moe: MoeLayer | None = None,
        stack: DecoderStack | None = None,
        clock: Clock = time.monotonic,
    ) -> Iterator[Engine]:
        engine = Engine(
            stack or self.stack,
            self.tokenizer,
            moe or self.router,
            options or EngineOptions(kv_tokens=4096),
            numerics=NUMERICS,
            clock=clock,
        )
        try:
            yield engine
        finally:
            engine.close()


def make_tiny(folder: Path, params: RandomMixtral = TINY) -> Path:
    return random_mixtral(folder, params)


_numbers = itertools.count()


def ask(
    prompt: Sequence[int],
    max_tokens: int = 8,
    *,
    request_id: str = "",
    stop_ids: Sequence[int] = (),
    resumed: Sequence[int] = (),
    receipt: int = 0,
    priority: int = 0,
    deadline: Deadline | None = None,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 7,
    **more: Any,
) -> GenerationRequest:
    """A request as validation would make it; end-of-sequence ids do not end it unless named. `more`: further
    fields of GenerationRequest.
    """
    return GenerationRequest(
        request_id=request_id or f"r{next(_numbers)}",
        prompt_ids=np.array(prompt, dtype=np.uint32),
        sampling=SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed),
        max_tokens=max_tokens,
        stop_ids=frozenset(stop_ids),
        resumed_ids=np.array(resumed, dtype=np.uint32),
        receipt=receipt,
        priority=priority,
        deadline=deadline or Deadline(),
        **more,
    )


@dataclass(slots=True)
class Answer:
    """Everything a choice brought. `streamed`: its text without what was held back to the end."""

    ids: list[int] = field(default_factory=list)
    receipts: list[int] = field(default_factory=list)
    text: str = ""
    streamed: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finished: Finished | None = None
    prompt: Prompt | None = None

    @property
    def end(self) -> Finished:
        if self.finished is None:
            raise RuntimeError("the answer has no Finished event")
        return self.finished


def read(handle: RequestHandle) -> Answer:
    """Reads a request of one choice to its end; raises what ended it."""
    [answer] = read_all(handle)
    return answer


def read_all(handle: RequestHandle) -> list[Answer]:
    """Reads a request to its end, choice by choice; raises what ended it."""
    return gather(handle.events())


def gather(events: Iterable[Event]) -> list[Answer]:
    answers: dict[int, Answer] = {}
    prompt: Prompt | None = None
    for event in events:
        if isinstance(event, Tokens):
            answer = answers.setdefault(event.choice, Answer(prompt=prompt))
            answer.ids += event.ids
            answer.receipts += event.receipts
            answer.logprobs += event.logprobs
            answer.text += event.text
            answer.streamed += event.text if event.ids else ""
        elif isinstance(event, Finished):
            answers.setdefault(event.choice, Answer(prompt=prompt)).finished = event
        elif isinstance(event, Prompt):
            prompt = event
    return [answers[choice] for choice in sorted(answers)]


def idle(engine: Engine) -> bool:
    """Nothing runs, nothing waits, every page is back."""
    stats = engine.stats()
    return stats.running == stats.waiting == stats.kv_pages_used == 0


def wait_for(what: str, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {WAIT_S} s for {what}")
        time.sleep(0.001)


class Turnstile:
    """An MoE layer that lets steps through one by one, so that a test decides what happens between which
    steps.
    """

    def __init__(self, inner: MoeLayer) -> None:
        self._inner = inner
        self._permits = threading.Semaphore(0)
        self._arrived = threading.Semaphore(0)
        self._open = False
        self.rows: list[int] = []
        self.calls: list[tuple[Deadline | None, int]] = []
        self.error: Exception | None = None

    def forward(self, layer: int, x: Array, deadline: Deadline | None = None, priority: int = 0) -> MoeResult:
        if layer == 0:
            self.rows.append(len(x))
            self.calls.append((deadline, priority))
            self._arrived.release()
            if not self._open and not self._permits.acquire(timeout=WAIT_S):
                raise TimeoutError("the test let no step through")
            if self.error is not None:
                error, self.error = self.error, None
                raise error
        return self._inner.forward(layer, x, deadline, priority)

    def wait_step(self) -> None:
        """Until the engine stands in a step, which `let` lets through."""
        if not self._arrived.acquire(timeout=WAIT_S):
            raise TimeoutError("the engine began no step")

    def let(self, steps: int = 1) -> None:
        self._permits.release(steps)

    def open(self) -> None:
        """Lets every step through from now on."""
        self._open = True
        self._permits.release()
