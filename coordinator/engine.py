"""The engine: one thread that admits requests, runs steps and delivers tokens.

A step is all running decodes plus a bounded share of prefill (scheduler). Cancels and deadlines act between steps.
A failed row, a bad logit or an expired deadline ends the request concerned. An unexpected error ends the requests
of its step, and the loop goes on. The engine never waits for a reader (handle).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, replace

from colibri.coordinator.answer_text import AnswerText
from colibri.coordinator.decoder import DecoderStack, StepOutput
from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.kv_cache import KvCache, KvShape
from colibri.coordinator.moe_layer import MoeLayer
from colibri.coordinator.request import GenerationRequest
from colibri.coordinator.scheduling.admission import ActiveRequest, Admission
from colibri.coordinator.scheduling.prefill_pace import PrefillPace
from colibri.coordinator.scheduling.scheduler import StepBudget
from colibri.coordinator.scheduling.step_pauses import StepPauses
from colibri.coordinator.sequence import End, Sequence
from colibri.coordinator.stats import EngineStats
from colibri.coordinator.step_batch import Step, compose_step
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
from colibri.generation import FinishReason, Prompt
from colibri.kernels.api import F32
from colibri.models.tokenizer import Tokenizer
from colibri.numerics import EngineNumerics

_LOG = logging.getLogger(__name__)
_IDLE_S = 1.0
#: Longest that close() waits for a step under way: above the MoE layer's own bound per wait.
_STEP_BOUND_S = 60.0
#: Rows of a prompt whose logits exist at once when its log-probabilities are asked for.
_SCORED_ROWS = 64


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Bounds of the engine. None of them changes a bit of any answer.

    max_batch_rows: rows of a step.
    prefill_chunk: rows of prefill among them.
    prefill_s: about how long prefill may prolong a step while answers run, seconds; 0: no limit.
    kv_page: positions of a cache page (8, 16, 32, 64).
    kv_tokens: positions that the cache holds over all requests.
    max_running: choices computed at once.
    max_queued: requests that may wait besides them.
    """

    max_batch_rows: int = 256
    prefill_chunk: int = 128
    prefill_s: float = 0.05
    kv_page: int = 16
    kv_tokens: int = 16384
    max_running: int = 16
    max_queued: int = 64

    def __post_init__(self) -> None:
        if not 1 <= self.max_running <= self.max_batch_rows:
            raise ConfigError("max_running", f"1 to max_batch_rows ({self.max_batch_rows})", self.max_running)
        if self.max_queued < 0:
            raise ConfigError("max_queued", "at least 0", self.max_queued)
        if not 0.0 <= self.prefill_s < math.inf:
            raise ConfigError("prefill_s", "seconds, at least 0", self.prefill_s)
        StepBudget(self.max_batch_rows, self.prefill_chunk)


class Engine:
    """Runs requests. Thread-safe: submit, cancel, stats, close.

    numerics: reported with every answer.
    pauses: room between steps for large work of other services on the same processors.
    """

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
        self.pauses = StepPauses(clock=clock)
        self._stack = stack
        self._tokenizer = tokenizer
        self._moe = moe
        self._clock = clock
        self.cache = KvCache(shape, stack.mode)
        self._budget = StepBudget(options.max_batch_rows, options.prefill_chunk)
        self._pace = PrefillPace(options.prefill_s)
        self._changed = threading.Condition()
        self._admission = Admission(self.cache, options.max_running)
        self._submitted = 0
        self._close_at: float | None = None
        self._in_step: SequenceOf[Sequence] = ()
        self._service_s = 1.0
        self._stats = EngineStats(kv_pages=shape.pages)
        self._thread = threading.Thread(target=self._loop, name="colibri-engine", daemon=True)
        self._thread.start()

    # Any thread.

    def submit(self, request: GenerationRequest) -> RequestHandle:
        """Queues a request. Raises InvalidInput, DuplicateRequest, Busy (with retry advice) or ShuttingDown."""
        self._check_size(request)
        texts = [self._text(request) for _ in range(request.n)]
        handle = RequestHandle(request, texts, self._cancel, self._check_alive, self._clock)
        if request.echo and not request.scores_prompt and not len(request.resumed_ids):
            logprobs = () if request.logprobs is None else (None,)
            handle.put_prompt(Prompt(tuple(request.prompt_ids.tolist()), request.prompt_text, logprobs))
        stopped = None if texts[0] is None else texts[0].stopped
        complete = request.resumed_end(stopped, self.numerics.id)
        with self._changed:
            admission = self._admission
            if self._close_at is not None:
                raise _shutting_down()
            if admission.get(request.key) is not None:
                raise DuplicateRequest(f"request_id: {request.request_id!r} is still running")
            if complete is not None:
                handle.finish(complete)
                self._stats.finished += 1
                return handle
            if len(admission) >= self.options.max_running + self.options.max_queued:
                self._stats.refused += 1
                raise Busy(
                    f"{len(admission) - len(admission.waiting)} requests run and {len(admission.waiting)} wait; "
                    "no more are taken now",
                    retry_after_s=self._retry_after_s(),
                )
            vocab = self._stack.config.vocab
            sequences = [
                Sequence(handle, choice_index, vocab, text if request.stop else None)
                for choice_index, text in enumerate(texts)
            ]
            admission.add(ActiveRequest(handle, sequences, self._submitted))
            self._submitted += 1
            self._changed.notify_all()
        return handle

    def abort(self, request_id: str, owner: str = "") -> bool:
        """Ends a request at the next step boundary. Returns False if the owner has none with that id."""
        with self._changed:
            active = self._admission.get((owner, request_id))
            if active is not None:
                active.cancelled = True
        return active is not None

    def stats(self) -> EngineStats:
        with self._changed:
            self._stats.waiting = len(self._admission.waiting)
            self._stats.running = len(self._admission.running)
            self._stats.kv_pages_used = self._stats.kv_pages - self.cache.pages.free
            return self._stats.snapshot()

    def close(self, grace_s: float = 0.0) -> None:
        """Takes no more requests, ends waiting ones, gives running ones `grace_s` seconds, then ends the thread.

        Raises ColibriError if a step exceeds its bound.
        """
        with self._changed:
            at = self._clock() + grace_s
            self._close_at = at if self._close_at is None else min(at, self._close_at)
            self._changed.notify_all()
        self._thread.join(grace_s + _STEP_BOUND_S)
        if self._thread.is_alive():
            raise ColibriError(f"engine: a step did not end within {_STEP_BOUND_S:.0f} s after the grace")

    def _check_size(self, request: GenerationRequest) -> None:
        if not 0 < request.kv_tokens <= self.context:
            raise InvalidInput("prompt + max_tokens", f"at most {self.context} tokens", request.kv_tokens)
        if request.n > self.options.max_running:
            raise InvalidInput("n", f"1 to {self.options.max_running} (answers computed at once)", request.n)
        needed = self.cache.pages_for(request.kv_tokens, len(request.prompt_ids), request.n)
        if needed > self.cache.shape.pages:
            raise InvalidInput(
                "n",
                f"choices whose prompt and max_tokens fit the cache of {self.cache.shape.tokens} positions",
                f"{request.n} choices of {request.kv_tokens} tokens",
            )

    def _text(self, request: GenerationRequest) -> AnswerText | None:
        """Returns the text of a choice after its resumed ids. Raises InvalidInput if they go on behind a stop
        string.
        """
        if self._tokenizer is None:
            return None
        text = AnswerText(self._tokenizer, request.context_tail(), request.stop, request.stop_ids)
        for at, token in enumerate(request.resumed_ids.tolist()):
            if text.stopped is not None:
                raise InvalidInput(
                    f"resume.generated_ids[{at}]",
                    f"nothing behind the stop string {text.stopped!r}, which ended the answer",
                    f"token {token}",
                )
            text.push(token, may_stop=at + 1 >= request.min_tokens)
        return text

    def _cancel(self, handle: RequestHandle) -> None:
        with self._changed:
            active = self._admission.get(handle.request.key)
            if active is not None and active.handle is handle:
                active.cancelled = True

    def _check_alive(self) -> None:
        if not self._thread.is_alive():
            raise ColibriError("engine: its thread has ended without an answer to this request")

    def _retry_after_s(self) -> float:
        """Estimates when a place in the queue becomes free, in seconds."""
        return min(max(self._service_s / self.options.max_running, 0.05), 60.0)

    # The engine's thread.

    def _loop(self) -> None:
        try:
            while self._prepare():
                try:
                    with self.pauses.step():
                        self._step()
                except Exception as error:
                    self._fail_step(error)
                self._in_step = ()
        finally:
            with self._changed:
                self._close_at = self._clock()
                for active in self._admission:
                    self._fail(active, _shutting_down())

    def _prepare(self) -> bool:
        """Works between steps: waits for work, ends what is cancelled or expired, admits what fits.

        Returns False if the engine is closed and idle.
        """
        with self._changed:
            while True:
                self._retire()
                if self._admission.waiting:
                    self._admission.admit(self._clock())
                if self._admission.running:
                    return True
                if self._close_at is not None:
                    return False
                self._changed.wait(_IDLE_S)

    def _retire(self) -> None:
        for active in self._admission:
            if active.cancelled:
                for sequence in tuple(active.sequences):
                    self._finish(sequence, End(FinishReason.ABORT))
            elif active.request.deadline.expired(self._clock):
                self._fail(
                    active,
                    DeadlineExpired(
                        f"request {active.request.request_id}: its time ended after {active.generated} tokens"
                    ),
                )
            elif self._close_at is not None and (
                active.admitted_at is None or self._clock() >= self._close_at
            ):
                self._fail(active, _shutting_down())

    def _step(self) -> None:
        begun = time.perf_counter()
        stats, times = self._stats, self._stats.times
        before = times.total
        self._in_step = running = self._admission.running
        budget = self._budget
        if any(sequence.decoding for sequence in running):
            budget = replace(budget, prefill_rows=self._pace.rows(budget.prefill_rows))
        step = compose_step(running, budget)
        self._in_step = step.sequences
        output = self._stack.forward(step.batch, self.cache, self._moe, times)
        for index, error in output.failed.items():
            self._fail_request_of(step.sequences[index], _of_model(error))
        rows_before = stats.decode_rows, stats.prefill_rows
        for sequence, rows in zip(step.sequences, step.rows, strict=True):
            stats.decode_rows += rows if sequence.decoding else 0
            stats.prefill_rows += 0 if sequence.decoding else rows
            sequence.computed += rows
        sampling = time.perf_counter()
        if output.scored_sequences:
            self._score_prompts(step, output)
        for row, index in enumerate(output.sequences):
            sequence, logits = step.sequences[index], output.logits[row]
            if sequence.followers:
                for follower in self._admission.follow(sequence):
                    self._choose(follower, logits)
            self._choose(sequence, logits)
        now = time.perf_counter()
        times.sample += now - sampling
        times.other += now - begun - (times.total - before)
        self._pace.measured(
            stats.decode_rows - rows_before[0], stats.prefill_rows - rows_before[1], now - begun
        )
        stats.steps += 1

    def _choose(self, sequence: Sequence, logits: F32) -> None:
        if sequence.pages is None:
            return  # it ended in this step: its prompt has no log-probabilities
        try:
            end = sequence.choose(self._stack.backend, logits)
        except ColibriError as error:
            self._fail_request_of(sequence, error)
            return
        self._stats.sampled += 1
        if end is not None:
            self._finish(sequence, end)

    def _score_prompts(self, step: Step, output: StepOutput) -> None:
        """Computes log-probabilities of prompts, a bounded number of rows at a time."""
        for index in dict.fromkeys(output.scored_sequences):
            rows = output.scored_rows[[at == index for at in output.scored_sequences]]
            try:
                for at in range(0, len(rows), _SCORED_ROWS):
                    logits = self._stack.head(rows[at : at + _SCORED_ROWS])
                    step.sequences[index].score_prompt(self._stack.backend, logits)
            except ColibriError as error:
                self._fail_request_of(step.sequences[index], error)

    def _fail_step(self, error: Exception) -> None:
        if not isinstance(error, ColibriError):
            ids = sorted({sequence.request.request_id for sequence in self._in_step})
            _LOG.error(
                "a step failed; its %d answers end",
                len(self._in_step),
                exc_info=error,
                extra={"request_id": ", ".join(ids)},
            )
            error = ColibriError(
                f"internal error in the step that computed this request ({type(error).__name__})"
            )
        for sequence in tuple(self._in_step):
            self._fail_request_of(sequence, error)

    def _fail_request_of(self, sequence: Sequence, error: ColibriError) -> None:
        """Ends the request of a choice with all its choices; does nothing if it has ended."""
        active = self._active(sequence)
        if active is not None:
            self._fail(active, error)

    def _fail(self, active: ActiveRequest, error: ColibriError) -> None:
        with self._changed:
            for sequence in tuple(active.sequences):
                self._leave(active, sequence)
            self._stats.failed += 1
        active.handle.fail(error)

    def _finish(self, sequence: Sequence, end: End) -> None:
        """Removes a choice and tells its reader; does nothing if it has ended."""
        with self._changed:
            active = self._active(sequence)
            if active is None:
                return
            if self._leave(active, sequence):
                if end.reason is FinishReason.ABORT:
                    self._stats.aborted += 1
                else:
                    self._stats.finished += 1
        sequence.handle.finish(sequence.finished(end, self.numerics.id), sequence.choice_index)

    def _leave(self, active: ActiveRequest, sequence: Sequence) -> bool:
        """Removes a choice. Returns whether it was the request's last."""
        last = self._admission.end(active, sequence)
        if last and active.admitted_at is not None:
            self._service_s += 0.2 * (self._clock() - active.admitted_at - self._service_s)
        return last

    def _active(self, sequence: Sequence) -> ActiveRequest | None:
        """Returns the request of a choice that has not ended."""
        active = self._admission.get(sequence.request.key)
        return active if active is not None and sequence in active.sequences else None


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("the engine is shutting down", retry_after_s=1.0)


def _of_model(error: ColibriError) -> ColibriError:
    """Returns the error for a row that turned NaN inside the model. It is not the client's fault, as BadRow
    would say.
    """
    return (
        ColibriError(f"a row of this request failed: {error.message}") if isinstance(error, BadRow) else error
    )
