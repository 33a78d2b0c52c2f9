"""A stream whose engine says nothing ends by its own bound."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from colibri.api import streams
from colibri.api.streams import AsyncStream, Reading, Stream
from colibri.coordinator.handle import RequestHandle
from colibri.errors import DeadlineExpired
from colibri.generation import Accepted
from tests.support.tiny_engine import ask


def silent(cancelled: list[RequestHandle]) -> RequestHandle:
    """A handle whose engine lives, and never answers."""
    return RequestHandle(ask((5, 9), 4), [None], cancelled.append, lambda: None)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_LOOK_S", 0.02)
    monkeypatch.setattr(streams, "_STEP_S", 0.1)


def test_silence_has_a_bound() -> None:
    cancelled: list[RequestHandle] = []
    stream = Stream(Reading(silent(cancelled), 0.05), "r")
    assert isinstance(next(stream), Accepted)
    with pytest.raises(
        DeadlineExpired, match=r"engine: request .* has not ended 0\.1 s after its time"
    ) as caught:
        next(stream)
    assert caught.value.peer == "engine"
    assert len(cancelled) == 1
    with pytest.raises(DeadlineExpired):
        next(stream)


def test_silence_has_a_bound_for_asyncio() -> None:
    cancelled: list[RequestHandle] = []

    async def read() -> None:
        async for _ in AsyncStream(lambda: Reading(silent(cancelled), 0.05), threads, "r"):
            pass

    with ThreadPoolExecutor(1) as threads, pytest.raises(DeadlineExpired, match="engine: request"):
        asyncio.run(asyncio.wait_for(read(), 30))
    assert cancelled
