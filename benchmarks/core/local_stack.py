"""A decoder stack in this process, asked for the logits of every position of a sequence (teacher forcing)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from colibri.coordinator.decoder import DecoderStack
from colibri.coordinator.decoder_weights import DecoderWeights
from colibri.coordinator.kv_cache import KvCache, KvShape
from colibri.coordinator.stats import PhaseTimes
from colibri.coordinator.step_batch import StepBatch
from colibri.deadline import Deadline
from colibri.expert_service.execute import run_units
from colibri.expert_service.store import WeightStore
from colibri.kernels.api import F32, ComputeMode
from colibri.kernels.factory import make_backend
from colibri.models.checkpoint import Checkpoint
from colibri.placement import Directory, Membership, spread
from colibri.router_service.executor import LocalExecutor
from colibri.router_service.router import MoeRouter

CHUNK = 256
PAGE = 16


class LocalStack:
    """The engine's own decoder stack and router over the local executor; what the engine adds is left out."""

    def __init__(self, model: Path, mode: ComputeMode, threads: int = 2, backend: str = "cpu") -> None:
        checkpoint = Checkpoint.open(model)
        config = checkpoint.config
        self._backend = make_backend(backend, threads=threads)
        self.mode = mode
        self.config = config
        self.stack = DecoderStack(DecoderWeights.load(checkpoint, self._backend, mode), self._backend)
        store = WeightStore(checkpoint, self._backend, mode)
        store.load([(la, e) for la in range(config.layers) for e in range(config.experts)])
        gates = [
            self._backend.pack_linear(checkpoint.gate(la), ComputeMode.FP32) for la in range(config.layers)
        ]
        directory = Directory(Membership(spread(config.layers, config.experts, ["local"]), {}))
        executor = LocalExecutor(partial(run_units, self._backend, store))
        self.moe = MoeRouter(self._backend, mode, gates, config.top_k, directory, executor)

    def logits(self, ids: Sequence[int]) -> F32:
        """fp32 [tokens, vocab]: position i has seen ids[0..i]."""
        session = _Session(self, len(ids))
        chunks = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
        return np.concatenate([session.step(chunk, np.arange(len(chunk), dtype=np.intp)) for chunk in chunks])

    def greedy(self, prompt: Sequence[int], new: int) -> list[int]:
        """The prompt's greedy continuation, decoded token by token from the cache."""
        session, answer = _Session(self, len(prompt) + new), list[int]()
        chunks = [prompt[start : start + CHUNK] for start in range(0, len(prompt), CHUNK)]
        while len(answer) < new:
            last = [session.step(chunk, np.array([len(chunk) - 1], np.intp)) for chunk in chunks][-1]
            answer.append(int(last[0].argmax()))
            chunks = [[answer[-1]]]
        return answer

    def close(self) -> None:
        self._backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Session:
    """One sequence and its cache of `tokens` positions."""

    def __init__(self, stack: LocalStack, tokens: int) -> None:
        config = stack.config
        shape = KvShape(config.layers, config.kv_heads, config.head_dim, PAGE, -(-tokens // PAGE) * PAGE)
        self._stack = stack
        self._cache = KvCache(shape, stack.mode)
        self._table = np.array([self._cache.pages.take(shape.pages)], np.int32)
        self._done = 0

    def step(self, ids: Sequence[int], logit_rows: NDArray[np.intp]) -> F32:
        positions = np.arange(self._done, self._done + len(ids), dtype=np.int32)
        self._done += len(ids)
        batch = StepBatch(
            ids=np.array(ids, np.uint32),
            positions=positions,
            row_sequence=np.zeros(len(ids), np.int32),
            page_table=self._table,
            logit_rows=logit_rows,
            deadline=Deadline(),
            priority=0,
        )
        step = self._stack.stack.forward(batch, self._cache, self._stack.moe, PhaseTimes())
        for error in step.failed.values():
            raise error
        return step.logits
