"""The engine: one thread that admits requests, runs steps and delivers tokens.

A step is all running decodes plus a bounded share of prefill (scheduler). Cancels and deadlines act between
steps. What goes wrong with one request ends that request: a failed row, a bad logit, an expired deadline;
an error nobody expected ends the requests of its step, and the loop lives on. The engine never waits for a
reader (handle).
"""

from __future__ import annotations

import bisect
import logging
import threading
import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from colibri.coordinator.decoder import DecoderStack
from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.kv_cache import KvCache, KvShape
from colibri.coordinator.moe_layer import MoeLayer
from colibri.coordinator.request import GenerationRequest
from colibri.coordinator.scheduler import StepBudget
from colibri.coordinator.sequence import Sequence
from colibri.coordinator.stats import EngineStats
from colibri.coordinator.step_batch import compose_step
from colibri.deadline import Clock
from colibri.errors import (
    BadRow,
    Busy,
    ColibriError,
    ConfigError,
    DeadlineExpired,
    DuplicateRequest,
    InvalidInput,
    ShuttingDown,
)
from colibri.generation import Finished, FinishReason
from colibri.kernels.api import F32
from colibri.models.detokenizer import IncrementalDetokenizer
from colibri.models.tokenizer import Tokenizer
from colibri.numerics import EngineNumerics

_LOG = logging.getLogger(__name__)
_IDLE_S = 1.0
#: Longest that close() waits for a step under way: above the MoE layer's own bound per wait.
_STEP_BOUND_S = 60.0


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """max_batch_rows: rows of a step; prefill_chunk: those of prefill among them; kv_page: positions of a
    cache page (8, 16, 32, 64); kv_tokens: positions the cache holds over all requests; max_running:
    requests computed at once; max_queued: requests that may wait beyond them. None of them changes a bit of
    any answer.
    """

    max_batch_rows: int = 256
    prefill_chunk: int = 128
    kv_page: int = 16
    kv_tokens: int = 16384
    max_running: int = 16
    max_queued: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.max_running <= self.max_batch_rows:
            raise ConfigError("max_running", f"1 to max_batch_rows ({self.max_batch_rows})", self.max_running)
        if self.max_queued < 0:
            raise ConfigError("max_queued", "at least 0", self.max_queued)
        StepBudget(self.max_batch_rows, self.prefill_chunk)


class Engine:
    """Thread-safe: submit, cancel, stats, close. `numerics`: reported with every answer."""

    def __init__(
        self,
        stack: DecoderStack,
        tokenizer: Tokenizer | None,
        moe: MoeLayer,
        options: EngineOptions,
        *,
        numerics: EngineNumerics,
        clock: Clock = time.monotonic,
    ) -> None:
        config = stack.config
        shape = KvShape(config.layers, config.kv_heads, config.head_dim, options.kv_page, options.kv_tokens)
        self.options = options
        self.numerics = numerics
        #: Longest prompt plus answer: what the model and the cache both hold.
        self.context = min(len(stack.weights.rope.cos), shape.pages * shape.page)
        self._stack = stack
        self._tokenizer = tokenizer
        self._moe = moe
        self._clock = clock
        self.cache = KvCache(shape, stack.mode)
        self._budget = StepBudget(options.max_batch_rows, options.prefill_chunk)
        self._changed = threading.Condition()
        self._waiting: list[Sequence] = []  # by priority, then age
        self._running: list[Sequence] = []  # by time of admission
        self._by_id: dict[str, Sequence] = {}
        self._submitted = 0
        self._close_at: float | None = None
        self._in_step: SequenceOf[Sequence] = ()
        self._service_s = 1.0
        self._stats = EngineStats(kv_pages=shape.pages)
        self._thread = threading.Thread(target=self._loop, name="colibri-engine", daemon=True)
        self._thread.start()

    # Any thread.

    def submit(self, request: GenerationRequest) -> RequestHandle:
        """Queues a request. Raises InvalidInput, DuplicateRequest, Busy (with retry advice) or
        ShuttingDown.
        """
        if not 0 < request.kv_tokens <= self.context:
            raise InvalidInput("prompt + max_tokens", f"at most {self.context} tokens", request.kv_tokens)
        text = None if self._tokenizer is None else IncrementalDetokenizer(self._tokenizer, request.tail())
        handle = RequestHandle(request, text, self._cancel, self._check_alive, self._clock)
        with self._changed:
            if self._close_at is not None:
                raise _shutting_down()
            if request.request_id in self._by_id:
                raise DuplicateRequest(f"request_id: {request.request_id!r} is still running")
            if len(self._by_id) >= self.options.max_running + self.options.max_queued:
                self._stats.refused += 1
                raise Busy(
                    f"{len(self._running)} requests run and {len(self._waiting)} wait; no more are taken now",
                    retry_after_s=self._retry_after_s(),
                )
            sequence = Sequence(handle, self._submitted)
            self._submitted += 1
            self._by_id[request.request_id] = sequence
            bisect.insort(self._waiting, sequence, key=lambda s: (-s.request.priority, s.order))
            self._changed.notify_all()
        return handle

    def abort(self, request_id: str) -> bool:
        """Ends a request at the next step boundary; False when it is unknown or has ended."""
        with self._changed:
            sequence = self._by_id.get(request_id)
            if sequence is not None:
                sequence.cancelled = True
        return sequence is not None

    def stats(self) -> EngineStats:
        with self._changed:
            self._stats.waiting = len(self._waiting)
            self._stats.running = len(self._running)
            self._stats.kv_pages_used = self._stats.kv_pages - self.cache.pages.free
            return self._stats.snapshot()

    def close(self, grace_s: float = 0.0) -> None:
        """Takes no more requests, ends those that wait, lets those that run go on for `grace_s` seconds,
        then ends the thread. Raises ColibriError when a step outlasts its bound.
        """
        with self._changed:
            at = self._clock() + grace_s
            self._close_at = at if self._close_at is None else min(at, self._close_at)
            self._changed.notify_all()
        self._thread.join(grace_s + _STEP_BOUND_S)
        if self._thread.is_alive():
            raise ColibriError(f"engine: a step did not end within {_STEP_BOUND_S:.0f} s after the grace")

    def _cancel(self, handle: RequestHandle) -> None:
        with self._changed:
            sequence = self._by_id.get(handle.request.request_id)
            if sequence is not None and sequence.handle is handle:
                sequence.cancelled = True

    def _check_alive(self) -> None:
        if not self._thread.is_alive():
            raise ColibriError("engine: its thread has ended without an answer to this request")

    def _retry_after_s(self) -> float:
        """About when a place in the queue becomes free."""
        return min(max(self._service_s / self.options.max_running, 0.05), 60.0)

    # The engine's thread.

    def _loop(self) -> None:
        try:
            while self._prepare():
                try:
                    self._step()
                except Exception as error:
                    self._fail_step(error)
                self._in_step = ()
        finally:
            with self._changed:
                self._close_at = self._clock()
                for sequence in list(self._by_id.values()):
                    self._end(sequence, _shutting_down())

    def _prepare(self) -> bool:
        """Between steps: waits for work, ends what is cancelled or expired, admits what fits. False: closed
        and idle.
        """
        with self._changed:
            while True:
                self._retire()
                self._admit()
                if self._running:
                    return True
                if self._close_at is not None:
                    return False
                self._changed.wait(_IDLE_S)

    def _retire(self) -> None:
        for sequence in list(self._by_id.values()):
            outcome = self._due(sequence)
            if outcome is not None:
                self._end(sequence, outcome)

    def _due(self, sequence: Sequence) -> Finished | ColibriError | None:
        """How a sequence must end now, if it must."""
        if sequence.cancelled:
            return sequence.finished(FinishReason.ABORT, self.numerics.id)
        if sequence.request.deadline.expired(self._clock):
            return DeadlineExpired(
                f"request {sequence.request.request_id}: its time ended after {sequence.generated} tokens"
            )
        if self._close_at is not None and (sequence.pages is None or self._clock() >= self._close_at):
            return _shutting_down()
        return None

    def _admit(self) -> None:
        """From the head of the queue, in order: a large request is never overtaken for ever by small ones."""
        while self._waiting and len(self._running) < self.options.max_running:
            sequence = self._waiting[0]
            sequence.pages = self.cache.reserve(sequence.request.kv_tokens)
            if sequence.pages is None:
                return
            sequence.admitted_at = self._clock()
            self._running.append(self._waiting.pop(0))

    def _step(self) -> None:
        begun = time.perf_counter()
        stats, times = self._stats, self._stats.times
        before = times.total
        self._in_step = self._running
        step = compose_step(self._running, self._budget)
        self._in_step = step.sequences
        output = self._stack.forward(step.batch, self.cache, self._moe, times)
        for index, error in output.failed.items():
            self._end(step.sequences[index], _of_model(error))
        for sequence, rows in zip(step.sequences, step.rows, strict=True):
            stats.decode_rows += rows if sequence.decoding else 0
            stats.prefill_rows += 0 if sequence.decoding else rows
            sequence.computed += rows
        sampling = time.perf_counter()
        for row, index in enumerate(output.sequences):
            self._choose(step.sequences[index], output.logits[row])
        now = time.perf_counter()
        times.sample += now - sampling
        times.other += now - begun - (times.total - before)
        stats.steps += 1

    def _choose(self, sequence: Sequence, logits: F32) -> None:
        try:
            reason = sequence.choose(self._stack.backend, logits)
        except ColibriError as error:
            self._end(sequence, error)
            return
        self._stats.sampled += 1
        if reason is not None:
            self._end(sequence, sequence.finished(reason, self.numerics.id))

    def _fail_step(self, error: Exception) -> None:
        if not isinstance(error, ColibriError):
            _LOG.error("a step failed; its %d requests end", len(self._in_step), exc_info=error)
            error = ColibriError(
                f"internal error in the step that computed this request ({type(error).__name__})"
            )
        for sequence in tuple(self._in_step):
            self._end(sequence, error)

    def _end(self, sequence: Sequence, outcome: Finished | ColibriError) -> None:
        """Takes a sequence out, gives its pages back, tells its reader; without effect when it has ended
        before.
        """
        with self._changed:
            if self._by_id.get(sequence.request.request_id) is not sequence:
                return
            del self._by_id[sequence.request.request_id]
            (self._waiting if sequence.pages is None else self._running).remove(sequence)
            if sequence.pages is not None:
                self.cache.release(sequence.pages)
                self._service_s += 0.2 * (self._clock() - sequence.admitted_at - self._service_s)
            if isinstance(outcome, ColibriError):
                self._stats.failed += 1
            elif outcome.reason is FinishReason.ABORT:
                self._stats.aborted += 1
            else:
                self._stats.finished += 1
        sequence.handle.end(outcome)


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the engine is shutting down", retry_after_s=1.0)


def _of_model(error: ColibriError) -> ColibriError:
    """A row that turned NaN inside the model is no fault of the client's, as BadRow's code would say."""
    return (
        ColibriError(f"a row of this request failed: {error.message}") if isinstance(error, BadRow) else error
    )
