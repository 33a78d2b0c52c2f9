"""Life and death of requests in the engine, step by step: the MoE layer is a turnstile that the test
holds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from colibri.coordinator.decoder import DecoderStack
from colibri.coordinator.engine import Engine, EngineOptions
from colibri.coordinator.handle import RequestHandle
from colibri.deadline import Clock, Deadline
from colibri.errors import (
    Busy,
    Code,
    ColibriError,
    ConfigError,
    DeadlineExpired,
    DuplicateRequest,
    InvalidInput,
    ShuttingDown,
    WorkerLost,
)
from colibri.generation import Accepted, Finished, FinishReason, Tokens
from colibri.kernels.api import F32, SamplingParams
from tests.support.tiny_engine import NUMERICS, WAIT_S, TinyModel, Turnstile, ask, idle, read, wait_for

OPTIONS = EngineOptions(max_batch_rows=64, prefill_chunk=32, kv_tokens=2048, max_running=4, max_queued=3)


@contextmanager
def held(
    model: TinyModel, options: EngineOptions = OPTIONS, clock: Clock = time.monotonic
) -> Iterator[tuple[Engine, Turnstile]]:
    turnstile = Turnstile(model.router)
    with model.engine(options, moe=turnstile, clock=clock) as engine:
        try:
            yield engine, turnstile
        finally:
            turnstile.open()


class TestAnswers:
    def test_events_in_order(self, model: TinyModel) -> None:
        with model.engine(OPTIONS) as engine:
            request = ask([1, 5, 9], 6, request_id="mine", seed=2**63)
            events = list(engine.submit(request).events())
        assert events[0] == Accepted("mine", 3, 2**63)
        tokens = [event for event in events if isinstance(event, Tokens)]
        assert events[1:-1] == tokens
        assert sum(len(event.ids) for event in tokens) == 6
        assert all(len(event.ids) == len(event.receipts) for event in tokens)
        assert all(event.ids for event in tokens[:-1])  # the last one is what was held back
        last = events[-1]
        assert isinstance(last, Finished)
        assert (last.reason, last.stop_id, last.seed) == (FinishReason.LENGTH, None, 2**63)
        assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (3, 6, 9)
        assert last.receipt == [receipt for event in tokens for receipt in event.receipts][-1]
        assert last.engine_numerics_id == NUMERICS.id

    def test_stop_id(self, model: TinyModel) -> None:
        with model.engine(OPTIONS) as engine:
            free = read(engine.submit(ask([1, 5, 9], 8)))
            stop = free.ids[3]
            answer = read(engine.submit(ask([1, 5, 9], 8, stop_ids=[stop])))
        upto = free.ids.index(stop) + 1
        assert answer.ids == free.ids[:upto]
        assert answer.receipts == free.receipts[:upto]
        assert answer.finished is not None
        assert (answer.finished.reason, answer.finished.stop_id) == (FinishReason.STOP, stop)
        whole = model.tokenizer.decode(answer.ids[:-1])
        assert answer.text in (whole, whole.removesuffix("\ufffd")), "an unfinished character is left out"

    def test_stop_wins_over_length(self, model: TinyModel) -> None:
        with model.engine(OPTIONS) as engine:
            free = read(engine.submit(ask([1, 5, 9], 1)))
            answer = read(engine.submit(ask([1, 5, 9], 1, stop_ids=free.ids)))
        assert answer.finished is not None
        assert answer.finished.reason is FinishReason.STOP

    def test_the_whole_context(self, model: TinyModel) -> None:
        with model.engine(replace(OPTIONS, kv_tokens=64, prefill_chunk=64)) as engine:
            assert engine.context == 64
            assert len(read(engine.submit(ask([1] * 60, 4))).ids) == 4
            assert len(read(engine.submit(ask([1], 63))).ids) == 63
            with pytest.raises(
                InvalidInput, match=r"prompt \+ max_tokens: expected at most 64 tokens, got 65"
            ):
                engine.submit(ask([1] * 60, 5))
        with model.engine(replace(OPTIONS, kv_tokens=4096)) as engine:
            assert engine.context == model.checkpoint.config.max_positions

    def test_a_reader_that_lags_gets_tokens_merged(self, model: TinyModel) -> None:
        with model.engine(OPTIONS) as engine:
            handle = engine.submit(ask([1, 5, 9], 40))
            wait_for("the end", lambda: idle(engine))
            events = list(handle.events())
        assert [type(event) for event in events] == [Accepted, Tokens, Tokens, Finished]
        assert isinstance(events[1], Tokens)
        assert len(events[1].ids) == len(events[1].receipts) == 40
        assert isinstance(events[2], Tokens)
        assert (events[2].ids, len(events[2].text)) == ((), 1)  # a glyph that might have gone on

    def test_counters(self, model: TinyModel) -> None:
        with model.engine(replace(OPTIONS, prefill_chunk=4)) as engine:
            read(engine.submit(ask([1] * 10, 5)))
            stats = engine.stats()
        assert (stats.steps, stats.prefill_rows, stats.decode_rows, stats.sampled) == (7, 10, 4, 5)
        assert (stats.finished, stats.aborted, stats.failed, stats.refused) == (1, 0, 0, 0)
        times = stats.times
        assert (
            min(times.norm, times.qkv, times.attention, times.o_proj, times.moe, times.head, times.sample) > 0
        )


class TestScheduling:
    def test_decodes_run_beside_a_long_prefill(self, model: TinyModel) -> None:
        with held(model, replace(OPTIONS, prefill_chunk=8)) as (engine, turnstile):
            first = engine.submit(ask([1, 2], 20))
            turnstile.wait_step()
            second = engine.submit(ask([3] * 30, 2))
            turnstile.open()
            read(first), read(second)
        assert turnstile.rows[:7] == [2, 9, 9, 9, 7, 2, 1]

    def test_priority_then_age(self, model: TinyModel) -> None:
        with held(model, replace(OPTIONS, max_running=1)) as (engine, turnstile):
            order: list[str] = []
            handles = [engine.submit(ask([1], 1, request_id="running"))]
            turnstile.wait_step()
            handles += [
                engine.submit(ask([1], 1, request_id=i, priority=p))
                for i, p in (("a", 0), ("b", 5), ("c", 5))
            ]

            def take(handle: RequestHandle) -> None:
                read(handle)
                order.append(handle.request.request_id)

            def answered(count: int) -> bool:
                return len(order) == count

            threads = [threading.Thread(target=take, args=(handle,)) for handle in handles]
            for thread in threads:
                thread.start()
            for count in range(1, 5):
                turnstile.let()
                wait_for("an answer", partial(answered, count))
            for thread in threads:
                thread.join(WAIT_S)
        assert order == ["running", "b", "c", "a"]
        assert [priority for _, priority in turnstile.calls] == [0, 5, 5, 0]

    def test_a_large_request_is_not_overtaken(self, model: TinyModel) -> None:
        with held(model, replace(OPTIONS, kv_tokens=128)) as (engine, turnstile):
            first = engine.submit(ask([1], 60))  # 4 of 8 pages
            turnstile.wait_step()
            large = engine.submit(ask([1], 100))  # 7 pages
            small = engine.submit(ask([1], 2))  # 1 page: would fit at once
            turnstile.let(5)
            for _ in range(5):
                turnstile.wait_step()
            assert (engine.stats().running, engine.stats().waiting) == (1, 2)
            first.cancel()
            turnstile.open()
            assert len(read(large).ids) == 100
            assert len(read(small).ids) == 2

    def test_the_steps_deadline_is_the_last_of_its_requests(self, model: TinyModel) -> None:
        now = time.monotonic()
        with held(model) as (engine, turnstile):
            one = engine.submit(ask([1], 3, deadline=Deadline(now + 500)))
            turnstile.wait_step()
            two = engine.submit(ask([1], 3, deadline=Deadline(now + 900)))
            turnstile.let()
            turnstile.wait_step()
            three = engine.submit(ask([1], 3))
            turnstile.open()
            for handle in (one, two, three):
                read(handle)
        assert [deadline for deadline, _ in turnstile.calls[:3]] == [
            Deadline(now + 500),
            Deadline(now + 900),
            Deadline(),
        ]


class TestRefusals:
    def test_busy(self, model: TinyModel) -> None:
        with held(model) as (engine, turnstile):
            taken = [engine.submit(ask([1], 2)) for _ in range(OPTIONS.max_running + OPTIONS.max_queued)]
            with pytest.raises(Busy) as caught:
                engine.submit(ask([1], 2))
            assert caught.value.code is Code.RESOURCE_EXHAUSTED
            assert caught.value.retryable
            assert caught.value.retry_after_s is not None
            assert caught.value.retry_after_s > 0
            turnstile.open()
            assert all(len(read(handle).ids) == 2 for handle in taken)
            assert len(read(engine.submit(ask([1], 2))).ids) == 2
            assert engine.stats().refused == 1

    def test_duplicates(self, model: TinyModel) -> None:
        with held(model) as (engine, turnstile):
            handle = engine.submit(ask([1], 2, request_id="twice"))
            with pytest.raises(DuplicateRequest, match="'twice' is still running"):
                engine.submit(ask([1], 2, request_id="twice"))
            turnstile.open()
            read(handle)
            assert len(read(engine.submit(ask([1], 2, request_id="twice"))).ids) == 2

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"max_running": 0}, r"max_running: expected 1 to max_batch_rows \(64\), got 0"),
            ({"max_running": 65}, "max_running: expected 1 to max_batch_rows"),
            ({"max_queued": -1}, "max_queued: expected at least 0, got -1"),
            ({"prefill_chunk": 0}, "prefill_chunk: expected at least 1, got 0"),
            ({"max_batch_rows": 0}, "max_running: expected 1 to max_batch_rows"),
        ],
    )
    def test_options(self, changes: dict[str, int], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            replace(OPTIONS, **changes)

    @pytest.mark.parametrize(
        ("changes", "field"), [({"kv_page": 24}, "kv_page"), ({"kv_tokens": 3}, "kv_tokens")]
    )
    def test_cache_options(self, model: TinyModel, changes: dict[str, int], field: str) -> None:
        options = replace(OPTIONS, **changes)
        with pytest.raises(ConfigError, match=field), model.engine(options):
            pass


class TestEnds:
    def test_abort_of_a_running_request(self, model: TinyModel) -> None:
        with held(model) as (engine, turnstile):
            handle = engine.submit(ask([1, 2], 30, request_id="gone"))
            mate = engine.submit(ask([1, 2], 6))
            turnstile.let(2)
            for _ in range(3):
                turnstile.wait_step()
            assert engine.abort("gone")
            turnstile.open()
            answer = read(handle)
            assert answer.finished is not None
            assert answer.finished.reason is FinishReason.ABORT
            assert (
                answer.finished.usage.completion_tokens == len(answer.ids) == 3
            )  # the step under way still counts
            assert answer.finished.receipt == answer.receipts[-1]
            assert read(mate).ids[:3] == answer.ids
            assert not engine.abort("gone")
            assert not engine.abort("never was")
            assert idle(engine)
            assert engine.stats().aborted == 1

    def test_abort_of_a_waiting_request(self, model: TinyModel) -> None:
        with held(model, replace(OPTIONS, max_running=1)) as (engine, turnstile):
            first, second = engine.submit(ask([1], 3)), engine.submit(ask([1], 3))
            turnstile.wait_step()
            second.cancel()
            turnstile.open()
            answer = read(second)
            assert answer.finished is not None
            assert (answer.finished.reason, answer.ids, answer.finished.receipt) == (
                FinishReason.ABORT,
                [],
                0,
            )
            assert len(read(first).ids) == 3

    def test_a_late_cancel_never_hits_another_request_of_that_id(self, model: TinyModel) -> None:
        with held(model) as (engine, turnstile):
            old = engine.submit(ask([1], 1, request_id="same"))
            turnstile.let()
            read(old)
            new = engine.submit(ask([1], 3, request_id="same"))
            old.cancel()
            turnstile.open()
            assert len(read(new).ids) == 3

    def test_leaving_the_events_cancels(self, model: TinyModel) -> None:
        with model.engine(OPTIONS) as engine:
            for event in engine.submit(ask([1], 400)).events():
                if isinstance(event, Tokens):
                    break
            wait_for("the request to end", lambda: idle(engine))
            assert engine.stats().aborted == 1

    def test_deadline_of_a_running_and_of_a_waiting_request(self, model: TinyModel) -> None:
        now = [100.0]
        with held(model, replace(OPTIONS, max_running=1), lambda: now[0]) as (engine, turnstile):
            first = engine.submit(ask([1], 9, deadline=Deadline(105.0)))
            second = engine.submit(ask([1], 9, deadline=Deadline(104.0)))
            third = engine.submit(ask([1], 2, deadline=Deadline(106.0)))
            turnstile.let(2)
            for _ in range(3):
                turnstile.wait_step()
            now[0] = 105.0
            turnstile.open()
            with pytest.raises(DeadlineExpired, match="its time ended after 3 tokens"):
                read(first)
            with pytest.raises(DeadlineExpired, match="its time ended after 0 tokens"):
                read(second)
            assert len(read(third).ids) == 2
            assert idle(engine)

    def test_tokens_come_before_the_error(self, model: TinyModel) -> None:
        with held(model) as (engine, turnstile):
            handle = engine.submit(ask([1], 9))
            turnstile.let(2)
            for _ in range(3):
                turnstile.wait_step()
            turnstile.error = WorkerLost("worker w7 is gone", peer="w7")
            turnstile.open()
            wait_for("the request to end", lambda: idle(engine))
            assert isinstance(handle.next_event(1), Accepted)
            tokens = handle.next_event(1)
            assert isinstance(tokens, Tokens)
            assert len(tokens.ids) == 2
            with pytest.raises(WorkerLost, match="w7"):
                handle.next_event(1)

    def test_an_unexpected_error_ends_its_step_and_not_the_loop(
        self, model: TinyModel, caplog: pytest.LogCaptureFixture
    ) -> None:
        with held(model) as (engine, turnstile):
            handles = [engine.submit(ask([1], 9)) for _ in range(2)]
            turnstile.wait_step()
            turnstile.let()
            turnstile.wait_step()  # both are in this one
            turnstile.error = RuntimeError("secret detail /home/x")
            turnstile.open()
            failures = []
            for handle in handles:
                with pytest.raises(ColibriError, match="internal error") as caught:
                    read(handle)
                failures.append(caught.value)
            assert {failure.code for failure in failures} == {Code.INTERNAL}
            assert not any("secret" in failure.message for failure in failures)
            assert "secret detail" in caplog.text
            assert len(read(engine.submit(ask([1], 2))).ids) == 2
            assert idle(engine)

    def test_bad_logits_end_one_request(self, model: TinyModel) -> None:
        """Real NaN logits out of the head, for one sequence of the batch."""

        class Poisoned(DecoderStack):
            def forward(self, batch, cache, moe, times):  # type: ignore[no-untyped-def]
                output = super().forward(batch, cache, moe, times)
                logits: F32 = output.logits.copy()
                for row, at in enumerate(batch.logit_rows.tolist()):
                    if batch.ids[at] == 99:
                        logits[row, 17] = np.nan
                return replace(output, logits=logits)

        stack = Poisoned(model.stack.weights, model.backend)
        with model.engine(OPTIONS, stack=stack) as engine:
            good, bad = engine.submit(ask([1, 2], 5)), engine.submit(ask([1, 99], 5))
            with pytest.raises(ColibriError, match=r"token 0 cannot be chosen: logits\[17\]") as caught:
                read(bad)
            assert caught.value.code is Code.INTERNAL
            expected = read(good)
        with model.engine(OPTIONS) as engine:
            assert read(engine.submit(ask([1, 2], 5))).receipts == expected.receipts

    def test_nan_inside_the_model_ends_one_request(self, model: TinyModel) -> None:
        """Token 99's embedding holds a NaN, which the gate of the first layer finds."""
        table = model.checkpoint.embedding().copy()
        table[99, 5] = 0x7FC0
        embedding = model.backend.pack_linear(table, model.mode)
        stack = DecoderStack(replace(model.stack.weights, embedding=embedding), model.backend)
        with model.engine(OPTIONS) as engine:
            expected = [read(engine.submit(ask([1, 2, at], 5))) for at in (3, 4)]
        with model.engine(OPTIONS, stack=stack) as engine:
            first, bad, last = (engine.submit(ask([1, 2, at], 5)) for at in (3, 99, 4))
            with pytest.raises(
                ColibriError, match=r"a row of this request failed: layer 0, row \d+: .*NaN"
            ) as caught:
                read(bad)
            assert caught.value.code is Code.INTERNAL
            assert [read(first).receipts, read(last).receipts] == [answer.receipts for answer in expected]
            assert engine.stats().failed == 1
            assert idle(engine)

    def test_a_row_on_a_lost_worker_ends_one_request(self, model: TinyModel) -> None:
        class OneRowLost:
            def forward(self, layer, x, deadline=None, priority=0):  # type: ignore[no-untyped-def]
                result = model.router.forward(layer, x, deadline, priority)
                if layer == 1 and len(x) == 2:
                    return replace(result, failed={1: WorkerLost("worker w2 is gone", peer="w2")})
                return result

        with model.engine(OPTIONS) as engine:
            expected = read(engine.submit(ask([1, 2], 30)))
        with model.engine(OPTIONS, moe=OneRowLost()) as engine:
            good, lost = engine.submit(ask([1, 2], 30)), engine.submit(ask([1, 3], 30))
            with pytest.raises(WorkerLost, match="w2"):
                read(lost)
            assert read(good).receipts == expected.receipts

    def test_a_request_that_no_kernel_takes_ends_alone(self, model: TinyModel) -> None:
        """Past validation on purpose: the kernel's refusal is this request's error, not its mates'."""
        with model.engine(OPTIONS) as engine:
            wrong = replace(ask([1], 3), sampling=SamplingParams(temperature=-1.0))
            good, bad = engine.submit(ask([1], 3)), engine.submit(wrong)
            with pytest.raises(ColibriError, match="temperature"):
                read(bad)
            assert len(read(good).ids) == 3


class TestClose:
    def test_grace_lets_running_requests_end(self, model: TinyModel) -> None:
        with held(model, replace(OPTIONS, max_running=1)) as (engine, turnstile):
            running, waiting = engine.submit(ask([1], 5)), engine.submit(ask([1], 5))
            turnstile.wait_step()
            closing = threading.Thread(target=engine.close, args=(WAIT_S,))
            closing.start()
            wait_for("refusal", lambda: _refuses(engine))
            turnstile.open()
            assert len(read(running).ids) == 5
            with pytest.raises(ShuttingDown) as caught:
                read(waiting)
            assert caught.value.code is Code.UNAVAILABLE
            assert caught.value.retryable
            closing.join(WAIT_S)
            assert not closing.is_alive()

    def test_without_grace_everything_ends(self, model: TinyModel) -> None:
        with held(model) as (engine, turnstile):
            running = engine.submit(ask([1], 400))
            turnstile.wait_step()
            closing = threading.Thread(target=engine.close)
            closing.start()
            wait_for("refusal", lambda: _refuses(engine))
            turnstile.open()
            with pytest.raises(ShuttingDown):
                read(running)
            closing.join(WAIT_S)
            assert not closing.is_alive()
            assert idle(engine)
            engine.close()  # a second time is nothing

    def test_an_idle_engine_closes_at_once(self, model: TinyModel) -> None:
        with model.engine(OPTIONS) as engine:
            begun = time.monotonic()
            engine.close(30)
            assert time.monotonic() - begun < 10


def _refuses(engine: Engine) -> bool:
    try:
        handle: RequestHandle = engine.submit(ask([1], 1))
    except ShuttingDown:
        return True
    handle.cancel()
    return False
