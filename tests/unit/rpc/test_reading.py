"""Messages of unary calls: bounded by their bytes before they are read, large ones read one at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from colibri.errors import InvalidInput
from colibri.rpc.counts import Counts, Most
from colibri.rpc.reading import DEFAULT_BYTES, Reading, Size
from colibri.v1 import generation_pb2 as pb
from tests.support.tiny_engine import WAIT_S

LARGE = DEFAULT_BYTES + 1


def test_a_message_is_read() -> None:
    message = pb.AbortRequest(request_id="r")
    data = message.SerializeToString()
    assert Reading().message(data, pb.AbortRequest.FromString, Size(len(data))) == message
    assert Reading().message(b"", pb.AbortRequest.FromString, Size(0)) == pb.AbortRequest()
    assert Reading().message(data, None, Size(len(data))) == data


def test_a_message_that_is_too_large_is_not_read() -> None:
    def read(data: bytes) -> None:
        raise AssertionError

    with pytest.raises(InvalidInput) as caught:
        Reading().message(bytes(11), read, Size(10))
    assert caught.value.message == "request: expected at most 10 bytes, got 11 bytes"


@pytest.mark.parametrize("size", [3, LARGE])
def test_bytes_that_are_no_message(size: int) -> None:
    reading = Reading()
    for _ in range(2):
        with pytest.raises(InvalidInput) as caught:
            reading.message(b"\xff" * size, pb.AbortRequest.FromString, Size(size))
        expected = f"request: expected a colibri.v1.AbortRequest, got {size} bytes that are none"
        assert caught.value.message == expected


def test_large_messages_are_read_one_at_a_time() -> None:
    inside = most = 0
    lock = threading.Lock()

    def read(data: bytes) -> bytes:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        threading.Event().wait(0.005)
        with lock:
            inside -= 1
        return data

    reading = Reading()
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(reading.message, bytes(LARGE), read, Size(LARGE)) for _ in range(4)]
        assert [len(call.result(WAIT_S)) for call in calls] == [LARGE] * 4
    assert most == 1


@pytest.mark.parametrize(
    ("took", "size", "rests"), [(0.03, LARGE, [0.03]), (0.001, LARGE, []), (0.03, DEFAULT_BYTES, [])]
)
def test_who_holds_the_interpreter_for_long_rests_as_long(took: float, size: int, rests: list[float]) -> None:
    now, rested = 0.0, list[float]()

    def read(data: bytes) -> bytes:
        nonlocal now
        now += took
        return data

    Reading(lambda: now, rested.append).message(bytes(size), read, Size(size))
    assert rested == pytest.approx(rests)


def test_too_many_elements_are_refused_before_protobuf_makes_them() -> None:
    def read(data: bytes) -> None:
        raise AssertionError

    data = pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage()] * LARGE)).SerializeToString()
    counts = Counts(pb.GenerateRequest.DESCRIPTOR, {"chat.messages": Most(7, "messages")})
    with pytest.raises(InvalidInput) as caught:
        Reading().message(data, read, Size(len(data), counts))
    assert caught.value.message == "chat.messages: expected at most 7 messages, got more than 7 messages"
