"""The service Generation over a real socket: answers, refusals, ends of every kind, and nothing left
behind.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from colibri.client import Client, EventStream
from colibri.coordinator.engine import EngineOptions
from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.sequence import Sequence
from colibri.errors import Busy, Cancelled, Code, ColibriError, DeadlineExpired, InvalidInput, WorkerLost
from colibri.generation import Accepted, Event, Finished, FinishReason, Resume, Tokens
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from colibri.v1 import generation_pb2 as pb
from colibri.v1 import generation_pb2_grpc
from tests.support.growth import assert_flat
from tests.support.served import Served, serve
from tests.support.tiny_engine import TINY, WAIT_S, TinyModel, Turnstile, ask, idle, make_tiny, read, wait_for

OPTIONS = EngineOptions(max_batch_rows=64, prefill_chunk=32, kv_tokens=8192, max_running=4, max_queued=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    backend = make_backend("cpu", threads=2)
    folder = make_tiny(tmp_path_factory.mktemp("served") / "m", replace(TINY, layers=1, max_positions=4096))
    opened = TinyModel.open(folder, backend, ComputeMode.BF16)
    yield opened
    opened.tokenizer.close()
    backend.close()


@pytest.fixture
def served(model: TinyModel, tmp_path: Path) -> Iterator[Served]:
    with serve(model, tmp_path, OPTIONS) as running:
        yield running


@contextmanager
def held(
    model: TinyModel, folder: Path, options: EngineOptions = OPTIONS
) -> Iterator[tuple[Served, Turnstile]]:
    turnstile = Turnstile(model.router)
    with serve(model, folder, options, turnstile) as running:
        try:
            yield running, turnstile
        finally:
            turnstile.open()


def tokens_of(events: list[Event]) -> tuple[list[int], list[int], str]:
    parts = [event for event in events if isinstance(event, Tokens)]
    return (
        [token for part in parts for token in part.ids],
        [receipt for part in parts for receipt in part.receipts],
        "".join(part.text for part in parts),
    )


def until_tokens(stream: EventStream) -> Tokens:
    """The first tokens of a stream."""
    return next(event for event in stream if isinstance(event, Tokens))


@contextmanager
def slow_call(target: str) -> Iterator[Iterator[pb.GenerateReply]]:
    """A long answer whose client has taken the first event and reads no more; little fits into the window."""
    narrow = [("grpc.http2.lookahead_bytes", 256), ("grpc.http2.bdp_probe", 0)]
    with grpc.insecure_channel(target, options=narrow) as channel:
        call = generation_pb2_grpc.GenerationStub(channel).Generate(
            pb.GenerateRequest(
                token_ids=pb.TokenIds(ids=[1]), stopping=pb.Stopping(max_tokens=4000, ignore_eos=True)
            ),
            timeout=WAIT_S * 2,
        )
        assert next(call).HasField("accepted")
        yield call


def live_objects() -> int:
    """What the engine keeps per request, over the whole process."""
    gc.collect()
    return sum(isinstance(each, (RequestHandle, Sequence)) for each in gc.get_objects())


class TestAnswers:
    def test_ids_in_ids_out(self, model: TinyModel, served: Served) -> None:
        """The same bits over the wire as in the engine."""
        events = list(
            served.client.generate([1, 5, 9], max_tokens=12, ignore_eos=True, request_id="q", seed=7)
        )
        with model.engine(OPTIONS) as engine:
            expected = read(engine.submit(ask([1, 5, 9], 12)))
        assert tokens_of(events) == (expected.ids, expected.receipts, expected.text)
        assert events[0] == Accepted("q", 3, 7)
        last = events[-1]
        assert isinstance(last, Finished)
        assert last.receipt == expected.receipts[-1]
        assert last == expected.finished
        assert last.engine_numerics_id == served.client.model_info().engine_numerics_id

    def test_text_in_text_out(self, model: TinyModel, served: Served) -> None:
        events = list(served.client.generate("Hello", max_tokens=30, ignore_eos=True))
        ids, _, text = tokens_of(events)
        assert isinstance(events[0], Accepted)
        assert events[0].prompt_tokens == len(model.tokenizer.encode("Hello")) == 6
        assert text == model.tokenizer.decode(ids)[: len(text)]
        assert len(text) > 0

    def test_a_drawn_seed_repeats_the_answer(self, served: Served) -> None:
        first = list(served.client.generate([1, 5], max_tokens=20, temperature=1.0, ignore_eos=True))
        other = list(served.client.generate([1, 5], max_tokens=20, temperature=1.0, ignore_eos=True))
        assert isinstance(first[-1], Finished)
        assert isinstance(other[-1], Finished)
        assert first[-1].seed != other[-1].seed
        assert tokens_of(first) != tokens_of(other)
        seed = first[-1].seed
        again = list(
            served.client.generate([1, 5], max_tokens=20, temperature=1.0, ignore_eos=True, seed=seed)
        )
        assert tokens_of(again) == tokens_of(first)

    def test_resume_goes_on_bit_for_bit(self, served: Served) -> None:
        asked: dict[str, Any] = {
            "max_tokens": 20,
            "temperature": 0.8,
            "top_p": 0.9,
            "top_k": 40,
            "seed": 3,
            "ignore_eos": True,
        }
        whole = list(served.client.generate("Go on", **asked))
        ids, receipts, text = tokens_of(whole)
        for cut in (1, 7, 19):
            resume = Resume(tuple(ids[:cut]), receipts[cut - 1])
            rest = list(served.client.generate("Go on", **asked, resume=resume))
            assert tokens_of(rest)[:2] == (ids[cut:], receipts[cut:])
            assert text.endswith(tokens_of(rest)[2])
            assert rest[-1] == whole[-1]

    def test_stop_id(self, served: Served) -> None:
        ids, receipts, _ = tokens_of(list(served.client.generate([1, 8], max_tokens=9, ignore_eos=True)))
        stop = ids[4]
        upto = ids.index(stop) + 1
        events = list(served.client.generate([1, 8], max_tokens=9, ignore_eos=True, stop_ids=[stop]))
        assert tokens_of(events)[:2] == (ids[:upto], receipts[:upto])
        last = events[-1]
        assert isinstance(last, Finished)
        assert (last.reason, last.stop_id) == (FinishReason.STOP, stop)

    def test_many_clients_at_once(self, served: Served) -> None:
        prompts = [[1, *range(10 + at, 20 + at)] for at in range(6)]
        expected = [
            tokens_of(list(served.client.generate(p, max_tokens=10, ignore_eos=True))) for p in prompts
        ]
        found: dict[int, object] = {}

        def one(at: int) -> None:
            with Client(served.target, timeout_s=WAIT_S) as client:
                found[at] = tokens_of(list(client.generate(prompts[at], max_tokens=10, ignore_eos=True)))

        threads = [threading.Thread(target=one, args=(at,)) for at in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert [found[at] for at in range(len(prompts))] == expected

    def test_model_info(self, model: TinyModel, served: Served) -> None:
        info = served.client.model_info()
        config = model.checkpoint.config
        assert (info.name, info.model_hash, info.compute_mode) == (
            "tiny",
            model.checkpoint.model_hash(),
            "bf16",
        )
        assert (info.vocab, info.layers, info.experts, info.top_k) == (
            config.vocab,
            1,
            config.experts,
            config.top_k,
        )
        assert (info.max_positions, info.eos_ids) == (config.max_positions, model.checkpoint.generation.eos)
        assert (info.workers, info.epoch) == ((), 0)
        assert info.expert_numerics_id in info.engine_numerics_id
        assert info.build_version


class TestRefusals:
    @pytest.mark.parametrize(
        ("asked", "message"),
        [
            ({"prompt": [1, 300]}, r"token_ids.ids\[1\]: expected a token id from 0 to 299, got 300"),
            ({"prompt": []}, "token_ids.ids: expected at least one token, got none"),
            ({"prompt": [1], "temperature": -1.0}, "sampling.temperature: expected 0, or"),
            ({"prompt": [1], "max_tokens": 4096}, "stopping.max_tokens: expected 1 to 4095"),
            ({"prompt": [1], "resume": Resume((), 4)}, "resume.receipt: expected 0 without generated_ids"),
            ({"prompt": [1], "request_id": "a b"}, "request_id: expected"),
        ],
    )
    def test_invalid(self, served: Served, asked: dict[str, object], message: str) -> None:
        with pytest.raises(ColibriError, match=message) as caught:
            list(served.client.generate(**asked))  # type: ignore[arg-type]
        assert caught.value.code is Code.INVALID_ARGUMENT
        assert not caught.value.retryable
        assert idle(served.engine)

    def test_values_that_fit_no_message(self, served: Served) -> None:
        with pytest.raises(InvalidInput, match="expected a whole number from 0 to"):
            served.client.generate([-1])
        with pytest.raises(InvalidInput, match="expected a whole number from 0 to"):
            served.client.generate([1], seed=2**64)

    def test_no_prompt_at_all(self, served: Served) -> None:
        with grpc.insecure_channel(served.target) as channel:
            stub = generation_pb2_grpc.GenerationStub(channel)
            with pytest.raises(
                grpc.RpcError, match="prompt: expected text, token_ids or chat, got none of them"
            ):
                list(stub.Generate(pb.GenerateRequest(), timeout=WAIT_S))

    def test_a_server_that_is_not_there(self, tmp_path: Path) -> None:
        with Client(f"unix:{tmp_path / 'nobody'}") as client:
            with pytest.raises(WorkerLost, match="nobody") as caught:
                client.model_info(timeout_s=WAIT_S)
            assert caught.value.peer == client.target
            with pytest.raises(DeadlineExpired, match="nobody"):
                client.wait_ready(0.2)

    def test_full_server(self, model: TinyModel, tmp_path: Path) -> None:
        """With every place taken: a typed refusal with advice, and Health, ModelInfo and Abort still
        answer.
        """
        with held(model, tmp_path) as (served, turnstile):
            places = OPTIONS.max_running + OPTIONS.max_queued
            streams = [served.client.generate([1], max_tokens=3, request_id=f"r{at}") for at in range(places)]
            for stream in streams:
                assert isinstance(next(stream), Accepted)
            with pytest.raises(Busy) as caught:
                list(served.client.generate([1]))
            assert caught.value.retryable
            assert caught.value.retry_after_s is not None
            assert caught.value.retry_after_s > 0
            with grpc.insecure_channel(served.target) as channel:
                reply = health_pb2_grpc.HealthStub(channel).Check(
                    health_pb2.HealthCheckRequest(service="colibri.v1.Generation"), timeout=WAIT_S
                )
            assert reply.status == health_pb2.HealthCheckResponse.SERVING
            assert served.client.model_info().name == "tiny"
            assert served.client.abort(f"r{places - 1}")
            turnstile.open()
            for stream in streams[:-1]:
                assert isinstance(list(stream)[-1], Finished)
            last = list(streams[-1])[-1]
            assert isinstance(last, Finished)
            assert last.reason is FinishReason.ABORT
            wait_for("all places", lambda: idle(served.engine))
            assert list(served.client.generate([1], max_tokens=3))

    def test_duplicate_id(self, model: TinyModel, tmp_path: Path) -> None:
        with held(model, tmp_path) as (served, turnstile):
            first = served.client.generate([1], max_tokens=2, request_id="same")
            next(first)
            with pytest.raises(ColibriError, match="'same' is still running") as caught:
                list(served.client.generate([1], max_tokens=2, request_id="same"))
            assert caught.value.code is Code.ALREADY_EXISTS
            turnstile.open()
            assert isinstance(list(first)[-1], Finished)

    def test_abort_without_an_id(self, served: Served) -> None:
        with pytest.raises(ColibriError, match="request_id: expected 1 to 128"):
            served.client.abort("")
        assert not served.client.abort("unknown")


class TestEnds:
    def test_abort(self, model: TinyModel, tmp_path: Path) -> None:
        with held(model, tmp_path) as (served, turnstile):
            stream = served.client.generate([1, 5], max_tokens=100, ignore_eos=True, request_id="q")
            turnstile.let(2)
            until_tokens(stream)
            assert served.client.abort("q")
            turnstile.open()
            last = list(stream)[-1]
            assert isinstance(last, Finished)
            assert last.reason is FinishReason.ABORT
            assert 1 <= last.usage.completion_tokens <= 3
            assert not served.client.abort("q")

    def test_deadline(self, model: TinyModel, tmp_path: Path) -> None:
        with held(model, tmp_path) as (served, turnstile):
            stream = served.client.generate([1], max_tokens=100, timeout_s=0.3)
            with pytest.raises(DeadlineExpired):
                list(stream)
            turnstile.open()
            wait_for("the request to end", lambda: idle(served.engine))
            assert list(served.client.generate([1], max_tokens=2))

    def test_an_error_of_the_moe_layer_arrives_typed(self, model: TinyModel, tmp_path: Path) -> None:
        with held(model, tmp_path) as (served, turnstile):
            stream = served.client.generate([1], max_tokens=5, ignore_eos=True)
            turnstile.let(2)
            until_tokens(stream)
            turnstile.error = WorkerLost("worker w3 (incarnation 8) is gone", peer="w3", retry_after_s=0.5)
            turnstile.open()
            with pytest.raises(WorkerLost, match="incarnation 8") as caught:
                list(stream)
            assert (caught.value.peer, caught.value.retryable, caught.value.retry_after_s) == (
                "w3",
                True,
                0.5,
            )
            assert len(tokens_of(list(served.client.generate([1], max_tokens=5, ignore_eos=True)))[0]) == 5

    def test_a_client_that_closes_its_stream(self, served: Served) -> None:
        with served.client.generate([1], max_tokens=4000, ignore_eos=True) as stream:
            until_tokens(stream)
        wait_for("the request to end", lambda: idle(served.engine))
        assert served.engine.stats().aborted == 1
        with pytest.raises(Cancelled):
            next(stream)

    def test_a_client_that_is_killed(self, served: Served) -> None:
        program = (
            "import sys; from colibri.client import Client\n"
            "for event in Client(sys.argv[1]).generate([1], max_tokens=4000, ignore_eos=True):\n"
            "    print(event, flush=True)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", program, served.target], stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            for _ in range(3):
                assert child.stdout.readline()
            child.send_signal(signal.SIGKILL)
        wait_for("the request to end", lambda: idle(served.engine))
        assert served.engine.stats().aborted == 1
        assert list(served.client.generate([1], max_tokens=2))

    def test_a_slow_reader_holds_nobody_up_and_gets_its_answer_merged(
        self, model: TinyModel, tmp_path: Path
    ) -> None:
        with serve(model, tmp_path, OPTIONS) as served, slow_call(served.target) as call:
            for _ in range(3):
                mate = list(served.client.generate([1], max_tokens=20, ignore_eos=True))
                assert len(tokens_of(mate)[0]) == 20
            wait_for("the slow reader's answer", lambda: idle(served.engine))
            parts = [reply.tokens for reply in call if reply.HasField("tokens")]
            expected = list(served.client.generate([1], max_tokens=4000, ignore_eos=True))
            assert [receipt for part in parts for receipt in part.receipts] == tokens_of(expected)[1]
            assert len(parts) < 2000

    def test_a_reader_that_stays_away_is_cut_off(self, model: TinyModel, tmp_path: Path) -> None:
        with (
            serve(model, tmp_path, OPTIONS, reader_timeout_s=0.5) as served,
            slow_call(served.target) as call,
        ):
            wait_for("the slow reader's answer", lambda: idle(served.engine))
            wait_for("the cut", lambda: live_objects() == 0)
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
            assert caught.value.code() is grpc.StatusCode.CANCELLED
            assert list(served.client.generate([1], max_tokens=2))

    def test_stopping_the_server_ends_open_streams(self, model: TinyModel, tmp_path: Path) -> None:
        with held(model, tmp_path) as (served, _):
            stream = served.client.generate([1], max_tokens=100, ignore_eos=True)
            next(stream)
        with pytest.raises(ColibriError) as caught:
            list(stream)
        assert caught.value.code in (Code.CANCELLED, Code.UNAVAILABLE)

    def test_200_cancelled_streams_leave_nothing(self, served: Served) -> None:
        def cancelled(count: int) -> None:
            for at in range(count):
                stream = served.client.generate([1, 2, 3], max_tokens=4000, ignore_eos=True)
                if at % 2:
                    until_tokens(stream)
                else:
                    next(stream)
                stream.close()
                wait_for("the request to end", lambda: idle(served.engine))

        def threads() -> tuple[int, int]:
            """Of the server's pool, which grows as calls overlap up to its bound, and all others."""
            pool = sum(thread.name.startswith("colibri-call") for thread in threading.enumerate())
            return pool, threading.active_count() - pool

        cancelled(50)
        wait_for("the first streams' objects", lambda: live_objects() == 0)
        others = threads()[1]

        def streams() -> None:
            cancelled(200)
            wait_for("the last streams' objects", lambda: live_objects() == 0)
            wait_for("the last streams' threads", lambda: threads()[1] <= others)
            assert threads()[0] < 8

        assert_flat(streams, lambda: {"rss": _rss_bytes()}, {"rss": 8 << 20})
        assert list(served.client.generate([1], max_tokens=2))


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
