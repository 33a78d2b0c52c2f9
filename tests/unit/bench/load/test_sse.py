from __future__ import annotations

import random

import pytest

from colibri.bench.load.targets.sse import MAX_EVENT_BYTES, SseDecoder
from colibri.errors import FrameError

STREAM = (
    b": hello\n\n"
    b"data: one\n\n"
    b"event: x\ndata:two\r\ndata: lines\r\n\r\n"
    b"id: 3\rdata:  spaced\r\r"
    b"data\n\n"
    b"retry: 5\n\n" + 'data: {"text": "a\u2028b\u0085c é"}\n\n'.encode() + b"data: [DONE]\n\ndata: cut"
)
EVENTS = ["one", "two\nlines", " spaced", "", '{"text": "a\u2028b\u0085c é"}', "[DONE]"]


def test_whole() -> None:
    assert SseDecoder().feed(STREAM) == EVENTS


@pytest.mark.parametrize("seed", range(20))
def test_cut_anywhere(seed: int) -> None:
    rng = random.Random(seed)
    decoder = SseDecoder()
    found, at = [], 0
    while at < len(STREAM):
        size = rng.randint(1, 5)
        found += decoder.feed(STREAM[at : at + size])
        at += size
    assert found == EVENTS


def test_refused() -> None:
    with pytest.raises(FrameError, match="no UTF-8"):
        SseDecoder().feed(b"data: \xff\n\n")
    with pytest.raises(FrameError, match="more than"):
        SseDecoder().feed(b"data: " + b"x" * (MAX_EVENT_BYTES + 1))
    decoder = SseDecoder()
    quarter = b"data: " + b"x" * (MAX_EVENT_BYTES // 4) + b"\n"
    for _ in range(4):
        decoder.feed(quarter)
    with pytest.raises(FrameError, match="more than"):
        decoder.feed(quarter)
