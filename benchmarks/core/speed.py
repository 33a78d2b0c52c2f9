"""Decode and prefill speed of a whole deployment, alone or against transformers bf16 in alternated runs."""

from __future__ import annotations

import json
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from benchmarks.peers import python, script
from benchmarks.table import Outcome
from colibri.coordinator.engine import EngineOptions
from colibri.coordinator.request import GenerationRequest
from colibri.deadline import Deadline
from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.running import Deployment
from colibri.generation import Tokens
from colibri.kernels.api import SamplingParams
from colibri.transport.link import LinkKind


@dataclass(frozen=True, slots=True)
class Speed:
    """prefill_s: submission to first token; decode_tokens_s: tokens after the first, per second."""

    prefill_s: float
    decode_tokens_s: float


def greedy(prompt: Sequence[int], new: int, name: str) -> GenerationRequest:
    return GenerationRequest(
        request_id=name,
        prompt_ids=np.array(prompt, np.uint32),
        sampling=SamplingParams(),
        max_tokens=new,
        stop_ids=frozenset(),
        resumed_ids=np.zeros(0, np.uint32),
        receipt=0,
        priority=0,
        deadline=Deadline(),
    )


class Ours:
    """A deployment that stays up, so that its runs can alternate with another arm's."""

    def __init__(
        self, model: Path, workers: int, *, link: str = "auto", chunk: int = 512, kv_tokens: int = 2048
    ) -> None:
        engine = EngineOptions(max_batch_rows=512, prefill_chunk=chunk, kv_tokens=kv_tokens)
        options = DeploymentOptions(model, workers, link=LinkKind(link), engine=engine)
        self.deployment: Deployment = assemble(options, lambda text: None)

    def run(self, prompt: Sequence[int], new: int) -> Speed:
        """`new` tokens after the first one."""
        start = time.perf_counter()
        times: list[float] = []
        for event in self.deployment.engine.submit(greedy(prompt, new + 1, "speed")).events():
            if isinstance(event, Tokens):
                times += [time.perf_counter()] * len(event.ids)
        return Speed(times[0] - start, new / (times[-1] - times[0]) if new else 0.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.deployment.close()


class Transformers:
    """transformers bf16 in a process of its own (benchmarks/peers/hf_speed.py)."""

    def __init__(self, model: Path) -> None:
        command = [python(), script("hf_speed.py"), str(model)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._answer()

    def run(self, prompt: Sequence[int], new: int) -> Speed:
        if self._process.stdin is None:
            raise RuntimeError("the peer was started with a pipe")
        self._process.stdin.write(json.dumps({"prompt": list(prompt), "new": new}) + "\n")
        self._process.stdin.flush()
        found = self._answer()
        return Speed(found["prefill_s"], new / found["decode_s"] if new else 0.0)

    def _answer(self) -> dict[str, float]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise RuntimeError(f"the transformers process ended with {self._process.wait(30)}")
        found: dict[str, float] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)


@contextmanager
def transformers(model: Path) -> Iterator[Transformers]:
    peer = Transformers(model)
    try:
        yield peer
    finally:
        peer.close()


def spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} [{min(values):.1f}-{max(values):.1f}]"


def decode_ratio(model: Path, workers: int, rounds: int, prompt: Sequence[int], new: int) -> Outcome:
    """Paired rounds, the order reversed every second one; the median of the paired ratios against 1.5."""
    ours_s: list[float] = []
    theirs_s: list[float] = []
    with Ours(model, workers) as ours, transformers(model) as theirs:
        ours.run(prompt, 8)
        theirs.run(prompt, 8)
        for index in range(rounds):
            arms: list[tuple[Ours | Transformers, list[float]]] = [(ours, ours_s), (theirs, theirs_s)]
            for arm, into in arms if index % 2 == 0 else arms[::-1]:
                into.append(arm.run(prompt, new).decode_tokens_s)
    ratio = statistics.median(a / b for a, b in zip(ours_s, theirs_s, strict=True))
    return Outcome(
        f"{ratio:.2f}x ({spread(ours_s)} tokens/s, {workers} workers, {rounds} paired rounds)",
        ratio >= 1.5,
        f"transformers bf16 {spread(theirs_s)} tokens/s",
        {"ours": ours_s, "theirs": theirs_s},
    )
