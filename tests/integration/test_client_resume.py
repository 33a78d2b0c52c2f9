"""An answer goes on where it was, over lost connections and over a server that was killed: the bits are those of an
undisturbed one."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colibri.client import Answer, AsyncClient, Client, Retry, collect
from colibri.coordinator.engine import EngineOptions
from colibri.errors import (
    Cancelled,
    Code,
    DeadlineExpired,
    InvalidInput,
    NumericsMismatch,
    WorkerLost,
)
from colibri.generation import Accepted, Event, Finished, FinishReason, Prompt, Tokens
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from tests.support.clusters import PROMPT, eventually, kill
from tests.support.cut_proxy import CutProxy, cut_proxy
from tests.support.served import Served, serve
from tests.support.serving import serving
from tests.support.tiny_engine import TINY, WAIT_S, TinyModel, Turnstile, idle, make_tiny, wait_for

OPTIONS = EngineOptions(max_batch_rows=64, prefill_chunk=32, kv_tokens=8192, max_running=4, max_queued=2)
RETRY = Retry(within_s=WAIT_S, first_wait_s=0.01, longest_wait_s=0.2)
#: What makes tokens, text and their ends depend on all that came before.
SAMPLED: dict[str, Any] = {
    "temperature": 0.9,
    "top_p": 0.95,
    "seed": 3,
    "ignore_eos": True,
    "max_tokens": 24,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    backend = make_backend("cpu", threads=2)
    folder = make_tiny(tmp_path_factory.mktemp("resume") / "m", replace(TINY, layers=1, max_positions=4096))
    opened = TinyModel.open(folder, backend, ComputeMode.BF16)
    yield opened
    opened.tokenizer.close()
    backend.close()


@pytest.fixture
def served(model: TinyModel, tmp_path: Path) -> Iterator[Served]:
    with serve(model, tmp_path, OPTIONS) as running:
        yield running


@contextlib.contextmanager
def behind_proxy(
    model: TinyModel, folder: Path, **client: Any
) -> Iterator[tuple[Client, CutProxy, Turnstile, Served]]:
    """A client whose connection can be cut between any two steps of the engine."""
    turnstile = Turnstile(model.router)
    with serve(model, folder, OPTIONS, turnstile) as served, cut_proxy(served.target) as proxy:
        try:
            with Client(proxy.target, timeout_s=WAIT_S, **{"retry": RETRY, **client}) as through:
                yield through, proxy, turnstile, served
        finally:
            turnstile.open()


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def content(answer: Answer) -> tuple[object, ...]:
    return (answer.choice, answer.ids, answer.receipts, answer.text, answer.logprobs, answer.finished)


def contents(answers: list[Answer]) -> list[tuple[object, ...]]:
    return [content(answer) for answer in answers]


class TestCuts:
    @pytest.mark.parametrize("cut_at", [0, 1, 2, 9, 23])
    def test_anywhere(self, model: TinyModel, tmp_path: Path, cut_at: int) -> None:
        """Before the first token, in the middle, before the last one."""
        with behind_proxy(model, tmp_path) as (client, proxy, turnstile, served):
            stream = client.generate("Go on", **SAMPLED)
            events: list[Event] = []
            # One step for the prompt and the first token, one for each other.
            for _ in range(cut_at):
                turnstile.let()
                events.append(next_tokens(stream, events))
            wait_for("a connection to lose", lambda: proxy.connections > 0)
            proxy.lose()
            turnstile.open()
            events += list(stream)
            wait_for("the lost request to end", lambda: idle(served.engine))
            assert proxy.connections >= 2
            whole = served.client.generate("Go on", **SAMPLED).answer()
            assert content(gather(events)) == content(whole)
            assert len(whole.ids) == 24

    @pytest.mark.parametrize("cut_at", [0, 1, 2, 7, 15])
    def test_everything_an_answer_can_have(self, model: TinyModel, tmp_path: Path, cut_at: int) -> None:
        """Choices, log-probabilities, penalties, echo, least length, and text that is held back for stop strings."""
        asked: dict[str, Any] = {
            **SAMPLED,
            "max_tokens": 16,
            "n": 3,
            "logprobs": 2,
            "echo": True,
            "min_tokens": 3,
            "repetition_penalty": 1.2,
            "presence_penalty": 0.5,
            "frequency_penalty": 0.25,
        }
        (tmp_path / "quiet").mkdir()
        with serve(model, tmp_path / "quiet", OPTIONS) as quiet:
            free = quiet.client.generate("Go on", **asked).answers()
            # Stop strings that occur: answers end in the middle, what may be their beginning is held back.
            asked["stop"] = [free[0].text[8:11], free[1].text[12:14], "never to be found"]
            expected = quiet.client.generate("Go on", **asked).answers()
        assert any(each.finished is not None and each.finished.stop_string for each in expected)
        with behind_proxy(model, tmp_path) as (client, proxy, turnstile, _):
            stream = client.generate("Go on", **asked)
            events: list[Event] = []
            for _ in range(cut_at):
                turnstile.let()
                events.append(next(stream))
            wait_for("a connection to lose", lambda: proxy.connections > 0)
            proxy.lose()
            turnstile.open()
            events += list(stream)
            assert proxy.connections >= 2
            assert contents(collect(events).all()) == contents(expected)
            assert [type(event) for event in events].count(Accepted) == 1
            echoed = [event for event in events if isinstance(event, Prompt)]
            assert [event.text for event in echoed] == ["Go on"]
            assert len(echoed[0].logprobs) == len(echoed[0].ids)

    def test_many_times(self, model: TinyModel, tmp_path: Path) -> None:
        told: list[str] = []
        # A reader that lags gets many tokens at once: there must be enough for eight losses in any case.
        asked = {**SAMPLED, "max_tokens": 3000}
        with behind_proxy(
            model, tmp_path, on_retry=lambda error, wait: told.append(type(error).__name__)
        ) as (client, proxy, turnstile, served):
            turnstile.open()
            events: list[Event] = []
            for event in client.generate([1, 5, 9], **asked):
                events.append(event)
                if isinstance(event, Tokens) and len(told) < 8:
                    proxy.lose()
            assert content(gather(events)) == content(served.client.generate([1, 5, 9], **asked).answer())
            assert len(told) >= 8
            assert set(told) <= {"WorkerLost", "DuplicateRequest"}

    def test_a_request_that_the_server_still_runs(self, model: TinyModel, tmp_path: Path) -> None:
        """A link that is cut without a word: the server goes on with the lost call, which must not stand in the
        way of its heir."""
        told: list[str] = []
        asked = {**SAMPLED, "max_tokens": 3000}
        with behind_proxy(
            model, tmp_path, on_retry=lambda error, wait: told.append(type(error).__name__)
        ) as (client, proxy, turnstile, served):
            turnstile.open()
            stream = client.generate([1, 5, 9], **asked)
            events: list[Event] = [next_tokens(stream, [])]
            proxy.lose_client()
            events += list(stream)
            assert content(gather(events)) == content(served.client.generate([1, 5, 9], **asked).answer())
            assert told[0] == "WorkerLost"
            assert "DuplicateRequest" in told

    def test_asyncio(self, model: TinyModel, tmp_path: Path) -> None:
        turnstile = Turnstile(model.router)

        async def run(target: str, proxy: CutProxy) -> list[Answer]:
            async with AsyncClient(target, timeout_s=WAIT_S, retry=RETRY) as client:
                stream = client.generate("Go on", **SAMPLED)
                events: list[Event] = []
                turnstile.let()
                async for event in stream:
                    events.append(event)
                    if sum(isinstance(each, Tokens) for each in events) == 3:
                        break
                    if isinstance(event, Tokens):
                        turnstile.let()
                proxy.lose()
                turnstile.open()
                async for event in stream:
                    events.append(event)
                return [gather(events)]

        with serve(model, tmp_path, OPTIONS, turnstile) as served, cut_proxy(served.target) as proxy:
            try:
                found = asyncio.run(run(proxy.target, proxy))
            finally:
                turnstile.open()
            assert proxy.connections >= 2
            assert contents(found) == contents(served.client.generate("Go on", **SAMPLED).answers())

    def test_a_long_outage(self, model: TinyModel, tmp_path: Path) -> None:
        """The channel connects again soon after the server is back, however long it was away."""
        with behind_proxy(model, tmp_path) as (client, proxy, turnstile, _):
            turnstile.open()
            stream = client.generate([1], max_tokens=3000, ignore_eos=True, temperature=0)
            events = [next_tokens(stream, [])]
            proxy.cut()
            mended: list[float] = []

            def mend() -> None:
                proxy.mend()
                mended.append(time.monotonic())

            timer = threading.Timer(6.0, mend)
            timer.start()
            try:
                seen = len(events)
                # What had arrived is read first; then the first event after the outage.
                while not mended:
                    events.append(next_tokens(stream, events))
                back = time.monotonic() - mended[0]
            finally:
                timer.join()
            assert len(events) > seen
            assert back < 4.0
            stream.close()

    def test_gives_up_in_time(self, model: TinyModel, tmp_path: Path) -> None:
        short = Retry(within_s=0.5, first_wait_s=0.01, longest_wait_s=0.1)
        with behind_proxy(model, tmp_path, retry=short) as (client, proxy, turnstile, _):
            stream = client.generate([1], **SAMPLED)
            turnstile.let(2)
            next_tokens(stream, [])
            proxy.cut()
            begun = time.monotonic()
            with pytest.raises(WorkerLost) as caught:
                list(stream)
            assert 0.3 < time.monotonic() - begun < 30.0
            assert caught.value.peer == client.target
            with pytest.raises(WorkerLost):
                next(stream)

    def test_the_time_of_the_whole_answer_counts(self, model: TinyModel, tmp_path: Path) -> None:
        with behind_proxy(model, tmp_path) as (client, proxy, turnstile, _):
            stream = client.generate([1], timeout_s=1.0, **SAMPLED)
            turnstile.let(2)
            next_tokens(stream, [])
            proxy.cut()
            begun = time.monotonic()
            with pytest.raises((WorkerLost, DeadlineExpired)):
                list(stream)
            assert time.monotonic() - begun < 30.0

    def test_close_ends_the_waiting(self, model: TinyModel, tmp_path: Path) -> None:
        slow = Retry(within_s=WAIT_S, first_wait_s=WAIT_S / 2, longest_wait_s=WAIT_S / 2)
        told = threading.Event()
        with behind_proxy(model, tmp_path, retry=slow, on_retry=lambda error, wait: told.set()) as (
            client,
            proxy,
            turnstile,
            _,
        ):
            stream = client.generate([1], **SAMPLED)
            turnstile.let(2)
            next_tokens(stream, [])
            proxy.cut()
            threading.Thread(target=lambda: told.wait(WAIT_S) and stream.close()).start()
            begun = time.monotonic()
            with pytest.raises(Cancelled):
                list(stream)
            assert time.monotonic() - begun < WAIT_S / 4

    def test_nothing_is_asked_again_unless_told(self, model: TinyModel, tmp_path: Path) -> None:
        with behind_proxy(model, tmp_path) as (client, proxy, turnstile, _):
            stream = client.generate([1], retry=False, **SAMPLED)
            turnstile.let(2)
            next_tokens(stream, [])
            proxy.lose()
            with pytest.raises(WorkerLost):
                list(stream)


class TestAdvice:
    def test_a_worker_that_is_lost(self, model: TinyModel, tmp_path: Path) -> None:
        """The server itself lives and advises it: the answer goes on there."""
        with behind_proxy(model, tmp_path) as (client, proxy, turnstile, served):
            stream = client.generate("Go on", **SAMPLED)
            turnstile.let(3)
            events: list[Event] = [next_tokens(stream, [])]
            turnstile.error = WorkerLost("worker w3 is gone", peer="w3", retry_after_s=0.05)
            turnstile.open()
            events += list(stream)
            assert proxy.connections == 1
            assert content(gather(events)) == content(served.client.generate("Go on", **SAMPLED).answer())

    def test_a_full_server_is_waited_for(self, model: TinyModel, tmp_path: Path) -> None:
        with behind_proxy(model, tmp_path) as (client, _, turnstile, served):
            places = OPTIONS.max_running + OPTIONS.max_queued
            held = [served.client.generate([1], max_tokens=3) for _ in range(places)]
            for stream in held:
                assert isinstance(next(stream), Accepted)
            waiting = client.generate([1, 2], max_tokens=3, ignore_eos=True)
            threading.Timer(0.3, turnstile.open).start()
            assert len(waiting.answer().ids) == 3
            for stream in held:
                stream.answers()

    def test_a_wrong_request_is_not_asked_again(self, model: TinyModel, tmp_path: Path) -> None:
        told: list[object] = []
        with (
            behind_proxy(model, tmp_path, on_retry=lambda *what: told.append(what)) as (client, _, _, _),
            pytest.raises(InvalidInput, match="token_ids"),
        ):
            client.generate([9999]).answer()
        assert told == []

    def test_unary_calls(self, model: TinyModel, tmp_path: Path) -> None:
        with behind_proxy(model, tmp_path) as (client, proxy, _, _):
            assert client.model_info().name == "tiny"
            proxy.cut()
            threading.Timer(0.3, proxy.mend).start()
            assert client.model_info().name == "tiny"
            assert not client.abort("unknown")


def test_another_model_does_not_continue_it(model: TinyModel, tmp_path: Path) -> None:
    """What comes back on the address computes other bits: the overlap shows it before a wrong token is given out."""
    folder = make_tiny(tmp_path / "other", replace(TINY, layers=1, max_positions=4096, seed=4))
    backend = make_backend("cpu", threads=2)
    other = TinyModel.open(folder, backend, ComputeMode.BF16)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    turnstile = Turnstile(model.router)
    try:
        with (
            serve(model, tmp_path / "one", OPTIONS, turnstile) as first,
            serve(other, tmp_path / "two", OPTIONS) as second,
            cut_proxy(first.target) as proxy,
            Client(proxy.target, timeout_s=WAIT_S, retry=RETRY) as client,
        ):
            stream = client.generate([1, 5, 9], **SAMPLED)
            for _ in range(3):
                turnstile.let()
                next_tokens(stream, [])
            proxy.switch(second.target)
            with pytest.raises(NumericsMismatch, match="cannot be resumed") as caught:
                list(stream)
            assert caught.value.code is Code.FAILED_PRECONDITION
            turnstile.open()
    finally:
        turnstile.open()
        backend.close()


class TestRestart:
    """`colibri serve` itself, as processes."""

    @pytest.mark.parametrize("kind", ["unix", "tcp"])
    def test_killed_and_started_again(
        self, tiny_mixtral: Path, tmp_path: Path, kind: str, free_port: int
    ) -> None:
        listen = f"unix:{tmp_path}/s" if kind == "unix" else f"127.0.0.1:{free_port}"
        asked: dict[str, Any] = {**SAMPLED, "max_tokens": 150, "temperature": 0.7}
        events: list[Event] = []
        with Client(listen, timeout_s=120, retry=Retry(within_s=60)) as client:
            with serving(tiny_mixtral, tmp_path, listen=listen) as running:
                whole = client.generate(PROMPT, **asked).answer()
                stream = client.generate(PROMPT, **asked)
                for _ in range(20):
                    events.append(next_tokens(stream, events))
                kill(running.process.pid)
                running.process.wait(10)
            with serving(tiny_mixtral, tmp_path, listen=listen) as again:
                events += list(stream)
                assert again.end(signal.SIGTERM) == 0
        assert content(gather(events)) == content(whole)
        assert len(whole.ids) == 150
        assert whole.finished is not None
        assert whole.finished.reason is FinishReason.LENGTH

    def test_told_to_stop_in_the_middle(self, tiny_mixtral: Path, tmp_path: Path) -> None:
        """An operator's restart, whose grace is too short for the answer."""
        listen = f"unix:{tmp_path}/s"
        asked: dict[str, Any] = {**SAMPLED, "max_tokens": 300}
        events: list[Event] = []
        with Client(listen, timeout_s=120, retry=Retry(within_s=60)) as client:
            with serving(tiny_mixtral, tmp_path, "--grace=0", listen=listen) as running:
                whole = client.generate(PROMPT, **asked).answer()
                stream = client.generate(PROMPT, **asked)
                for _ in range(20):
                    events.append(next_tokens(stream, events))
                assert running.end(signal.SIGTERM) == 0
            with serving(tiny_mixtral, tmp_path, listen=listen):
                events += list(stream)
        assert content(gather(events)) == content(whole)

    def test_a_killed_worker(self, tiny_mixtral: Path, tmp_path: Path) -> None:
        """The launcher gives it a new life; whether the server fails over or the client asks again, the answer is
        the same."""
        asked: dict[str, Any] = {**SAMPLED, "max_tokens": 200}
        with (
            serving(tiny_mixtral, tmp_path) as running,
            Client(running.target, timeout_s=120, retry=Retry(within_s=60)) as client,
        ):
            whole = client.generate(PROMPT, **asked).answer()
            stream = client.generate(PROMPT, **asked)
            events: list[Event] = [next_tokens(stream, [])]
            kill(running.workers()[0])
            events += list(stream)
            assert content(gather(events)) == content(whole)
            eventually(lambda: client.model_info().workers == ("w0", "w1"), 30, "the worker is back")


def next_tokens(stream: Iterator[Event], events: list[Event]) -> Event:
    """The next tokens; other events before them join `events`."""
    for event in stream:
        if isinstance(event, Tokens):
            return event
        events.append(event)
    raise AssertionError("the answer ended")


def gather(events: list[Event]) -> Answer:
    assert sum(isinstance(event, Finished) for event in events) == 1
    return collect(events).only()
