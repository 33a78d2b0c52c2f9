"""AsyncClient against a real server: the same answers as the synchronous client, and ends of every kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from colibri.client import AsyncClient, Retry
from colibri.coordinator.engine import EngineOptions
from colibri.errors import Busy, Cancelled, DeadlineExpired, InvalidInput, WorkerLost
from colibri.generation import Accepted, Finished, FinishReason, Tokens
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from tests.support.served import Served, serve
from tests.support.tiny_engine import TINY, WAIT_S, TinyModel, Turnstile, idle, make_tiny, wait_for

OPTIONS = EngineOptions(max_batch_rows=64, prefill_chunk=32, kv_tokens=8192, max_running=4, max_queued=2)
T = TypeVar("T")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    backend = make_backend("cpu", threads=2)
    folder = make_tiny(tmp_path_factory.mktemp("aio") / "m", replace(TINY, layers=1, max_positions=4096))
    opened = TinyModel.open(folder, backend, ComputeMode.BF16)
    yield opened
    opened.tokenizer.close()
    backend.close()


@pytest.fixture
def served(model: TinyModel, tmp_path: Path) -> Iterator[Served]:
    with serve(model, tmp_path, OPTIONS) as running:
        yield running


def run(target: str, program: Callable[[AsyncClient], Awaitable[T]], **options: Any) -> T:
    async def inside() -> T:
        async with AsyncClient(target, timeout_s=WAIT_S, **options) as client:
            return await program(client)

    return asyncio.run(inside())


def test_the_same_answers_as_the_synchronous_client(served: Served) -> None:
    asked: dict[str, Any] = {
        "n": 2,
        "temperature": 0.9,
        "seed": 5,
        "logprobs": 1,
        "max_tokens": 12,
        "ignore_eos": True,
    }

    async def program(client: AsyncClient) -> list[Any]:
        await client.wait_ready(WAIT_S)
        streams = [client.generate(prompt, **asked) for prompt in ("one", [1, 5, 9], "three")]
        return list(await asyncio.gather(*(stream.answers() for stream in streams)))

    found = run(served.target, program)
    assert found == [served.client.generate(p, **asked).answers() for p in ("one", [1, 5, 9], "three")]


def test_calls_that_compute_nothing(model: TinyModel, served: Served) -> None:
    async def program(client: AsyncClient) -> None:
        info = await client.model_info()
        assert info == served.client.model_info()
        assert (info.has_tokenizer, info.has_chat_template) == (True, False)
        tokens = await client.tokenize("Hello")
        assert tokens == served.client.tokenize("Hello")
        assert list(tokens.ids) == model.tokenizer.encode("Hello")
        assert len(tokens.pieces) == len(tokens.ids)
        plain = await client.tokenize("Hello", add_special=False)
        assert len(plain.ids) < len(tokens.ids)
        assert await client.detokenize(plain.ids) == served.client.detokenize(plain.ids) == "Hello"
        assert await client.detokenize(tokens.ids, skip_special=True) == "Hello"
        assert not await client.abort("unknown")
        with pytest.raises(InvalidInput, match="no chat template"):
            await client.chat([{"role": "user", "content": "x"}]).answer()
        with pytest.raises(InvalidInput, match="ids"):
            await client.detokenize([99999])

    run(served.target, program)


def test_abort_close_and_cancel(served: Served) -> None:
    """Three ways to end an answer; after each the server has let go of it."""
    long: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True}

    async def until_tokens(stream: Any) -> None:
        async for event in stream:
            if isinstance(event, Tokens):
                return

    async def program(client: AsyncClient) -> None:
        stream = client.generate([1], **long)
        await until_tokens(stream)
        assert await client.abort(stream.request_id)
        answer = await stream.answer()
        assert answer.finished is not None
        assert answer.finished.reason is FinishReason.ABORT

        stream = client.generate([1], **long)
        await until_tokens(stream)
        stream.close()
        with pytest.raises(Cancelled):
            await stream.answer()
        await asyncio.to_thread(wait_for, "the closed request to end", lambda: idle(served.engine))

        async with client.generate([1], **long) as left:
            assert isinstance(await anext(left), Accepted)
        await asyncio.to_thread(wait_for, "the left request to end", lambda: idle(served.engine))

        task = asyncio.create_task(client.generate([1], **long).answer())
        await asyncio.to_thread(wait_for, "the request to run", lambda: not idle(served.engine))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.to_thread(wait_for, "the cancelled request to end", lambda: idle(served.engine))

    run(served.target, program)


def test_errors_are_typed(model: TinyModel, tmp_path: Path) -> None:
    turnstile = Turnstile(model.router)

    async def program(client: AsyncClient) -> None:
        with pytest.raises(InvalidInput, match=r"token_ids\.ids"):
            client.generate([-1])
        with pytest.raises(DeadlineExpired):
            await client.generate([1], timeout_s=0.2, max_tokens=9).answer()
        turnstile.let()
        await asyncio.to_thread(wait_for, "the expired request to end", lambda: idle(held.engine))
        stream = client.generate([1], max_tokens=9)
        turnstile.error = WorkerLost("worker w3 is gone", peer="w3")
        turnstile.open()
        with pytest.raises(WorkerLost, match="w3") as caught:
            await stream.answer()
        assert (caught.value.retryable, caught.value.peer) == (True, "w3")
        with pytest.raises(WorkerLost):
            await anext(stream)

    with serve(model, tmp_path, OPTIONS, turnstile) as held:
        try:
            run(held.target, program)
        finally:
            turnstile.open()


def test_a_full_server_is_waited_for(model: TinyModel, tmp_path: Path) -> None:
    turnstile = Turnstile(model.router)

    async def program(client: AsyncClient) -> None:
        held = [
            client.generate([1], max_tokens=3, retry=False)
            for _ in range(OPTIONS.max_running + OPTIONS.max_queued)
        ]
        for stream in held:
            assert isinstance(await anext(stream), Accepted)
        with pytest.raises(Busy):
            await client.generate([1], retry=False).answer()
        waiting = asyncio.create_task(client.generate([1, 2], max_tokens=3, ignore_eos=True).answer())
        await asyncio.sleep(0.2)
        turnstile.open()
        assert len((await waiting).ids) == 3
        for stream in held:
            assert [event async for event in stream if isinstance(event, Finished)]

    with serve(model, tmp_path, OPTIONS, turnstile) as served:
        try:
            run(served.target, program, retry=Retry(within_s=WAIT_S))
        finally:
            turnstile.open()


def test_nobody_is_there(tmp_path: Path) -> None:
    async def program(client: AsyncClient) -> None:
        with pytest.raises(WorkerLost, match="nobody") as caught:
            await client.model_info()
        assert caught.value.peer == client.target
        with pytest.raises(DeadlineExpired, match="nobody"):
            await client.wait_ready(0.2)

    run(f"unix:{tmp_path / 'nobody'}", program)
