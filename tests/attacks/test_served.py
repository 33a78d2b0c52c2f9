"""Calls of a plain client against a real deployment, each of a class of published faults of other servers (CVE numbers
below): refused with a status and a text, or answered; the deployment stays whole and answers the same bits."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest

from colibri.v1 import expert_pb2 as ep
from colibri.v1 import expert_pb2_grpc, operator_pb2, operator_pb2_grpc, router_pb2_grpc
from colibri.v1 import generation_pb2 as gp
from colibri.v1 import router_pb2 as rp
from tests.integration.bad_input.folders import HIDDEN, VOCAB
from tests.integration.bad_input.live import WAIT_S, Live, live
from tests.integration.bad_input.requests import ABORT, DETOKENIZE, FORWARD, GATE, GENERATE, TOKENIZE
from tests.support.tries import Tries

INFO = "/colibri.v1.Generation/ModelInfo"
MAX_U32, MAX_U64 = (1 << 32) - 1, (1 << 64) - 1
#: Statuses that blame the caller. INTERNAL and UNKNOWN mean that a request reached what it should not.
BLAMED = frozenset(
    (
        "INVALID_ARGUMENT",
        "RESOURCE_EXHAUSTED",
        "DEADLINE_EXCEEDED",
        "UNIMPLEMENTED",
        "PERMISSION_DENIED",
        "CANCELLED",
    )
)
#: Of this machine: folders, sockets, memory, addresses in it.
LEAKS = re.compile(
    r"/(?:tmp|root|home|proc|dev|run|var|usr)/|\.sock\b|memfd|0x[0-9a-f]{9,}|Traceback|colibri-run"
)
#: For logs and terminals: a forged line, a cleared screen, text turned around, no character at all.
INJECTIONS = (
    "\nINFO: all is well",
    "\x1b[2J\x1b[31m",
    "\u202eabc",
    "\r",
    "\x00",
    "\x9b2J",
    "a\u2028b",
    "%s%n{0}${jndi:x}",
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("served")) as found:
        yield found


@pytest.fixture(autouse=True)
def unharmed(server: Live) -> Iterator[None]:
    yield
    assert server.harm() == ""


def request(**fields: object) -> gp.GenerateRequest:
    asked = gp.GenerateRequest(token_ids=gp.TokenIds(ids=[5, 9, 42]), stopping=gp.Stopping(max_tokens=4))
    asked.MergeFrom(gp.GenerateRequest(**fields))  # type: ignore[arg-type]
    return asked


def fails(server: Live, method: str, message: bytes, *, may_pass: bool = False) -> str:
    """The refusal's text; an answer is none unless it may be. Nothing of the machine is in it."""
    reply = server.call(method, message)
    if reply.code is None:
        assert may_pass, f"{method} took {message[:80]!r}: {reply.message}"
        return ""
    assert reply.code.value in BLAMED, f"{reply.code}: {reply.message}"
    assert not LEAKS.search(reply.message), reply.message
    assert reply.message.isprintable(), reply.message
    return reply.message


def test_ids_beyond_the_vocabulary(server: Live, tries: Tries) -> None:
    """CVE-2026-116174: such ids ended the engine. Negative ones travel as ten bytes, whose low half is taken."""
    draw, count = random.Random(), 0
    for wrong in (
        VOCAB,
        VOCAB + 1,
        1 << 16,
        1 << 24,
        (1 << 31) - 1,
        1 << 31,
        MAX_U32,
        *range(VOCAB, VOCAB + 9),
    ):
        ids = [draw.randrange(VOCAB) for _ in range(draw.randrange(9))]
        ids.insert(draw.randrange(len(ids) + 1), wrong)
        fails(server, GENERATE, gp.GenerateRequest(token_ids=gp.TokenIds(ids=ids)).SerializeToString())
        fails(server, DETOKENIZE, gp.DetokenizeRequest(ids=ids).SerializeToString())
        fails(server, GENERATE, request(stopping=gp.Stopping(stop_ids=[wrong])).SerializeToString())
        fails(server, GENERATE, request(resume=gp.Resume(generated_ids=[wrong])).SerializeToString())
        count += 4
    for value in (-1, -(1 << 31), -(1 << 63)):
        varint, left = b"", value & MAX_U64
        while left > 127:
            varint, left = varint + bytes((left & 127 | 128,)), left >> 7
        packed = varint + bytes((left,))
        listed = b"\x0a" + bytes((len(packed),)) + packed
        # An id is 32 bits: what the parser leaves of -2^63 is 0, a token.
        fails(server, GENERATE, b"\x1a" + bytes((len(listed),)) + listed, may_pass=value == -(1 << 63))
        count += 1
    tries("token ids beyond the vocabulary", count)


def test_counts_beyond_bounds(server: Live, tries: Tries) -> None:
    """CVE-2026-34756 (n), -116172 (logprobs), -116173 (lists), -24146 (outputs)."""
    calls: list[gp.GenerateRequest] = []
    for value in (21, 1 << 10, 1 << 20, 1 << 31, MAX_U32 - 2000):
        calls += [request(n=value), request(logprobs=value), request(n=value, logprobs=value, echo=True)]
        calls += [request(sampling=gp.Sampling(top_k=VOCAB + value))]
        calls += [request(stopping=gp.Stopping(max_tokens=512 + value)), request(priority=1000 + value - 16)]
        calls += [
            request(stopping=gp.Stopping(min_tokens=512 + value)),
            request(resume=gp.Resume(choice=value)),
        ]
    for count in (65, 1000, 200_000):
        calls += [
            request(stopping=gp.Stopping(stop_ids=[7] * count)),
            request(stopping=gp.Stopping(stop=["x"] * count)),
        ]
        calls += [request(resume=gp.Resume(generated_ids=[7] * (count + 512)))]
        calls += [gp.GenerateRequest(chat=gp.Chat(messages=[gp.ChatMessage(role="user")] * (count * 20)))]
        calls += [gp.GenerateRequest(token_ids=gp.TokenIds(ids=[7] * (count + 512)))]
    for call in calls:
        fails(server, GENERATE, call.SerializeToString())
    tries("counts beyond bounds", len(calls))


def test_floats_that_are_no_numbers(server: Live, tries: Tries) -> None:
    fields = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    values = (float("nan"), float("inf"), -float("inf"), -1e38, 3e38, 1e-45)
    for field in fields:
        for value in values:
            # The smallest of all is a rightful top_p and min_p, and no penalty to speak of.
            asked = request(sampling=gp.Sampling(**{field: value}))  # type: ignore[arg-type]
            fails(server, GENERATE, asked.SerializeToString(), may_pass=value == 1e-45)
    tries("floats that are no numbers", len(fields) * len(values))


def rows(count: int, value: float, draw: np.random.Generator) -> bytes:
    made = draw.standard_normal((count, HIDDEN), dtype=np.float32)
    made.reshape(-1)[draw.integers(0, made.size, max(1, made.size // 7))] = value
    return made.tobytes()


def test_tensors_that_lie(server: Live, tries: Tries) -> None:
    """CVE-2025-33201, -2026-24173 (sizes), -2026-105754 (shapes), -137567 (no elements)."""
    draw, count = np.random.default_rng(), 0
    good = rows(3, 1.0, draw)
    for forward in (True, False):
        method, kind = (FORWARD, rp.ForwardRequest) if forward else (GATE, rp.GateRequest)
        for layer, number, hidden, data in (
            (0, 3, HIDDEN, good[:-1]),
            (0, 3, HIDDEN, good + b"x"),
            (0, 3, HIDDEN, b""),
            (0, 0, HIDDEN, good),
            (0, 0, 0, good),
            (0, 3, 0, b""),
            (0, MAX_U32, HIDDEN, good),
            (0, 1 << 31, 1 << 31, good),
            (0, 1 << 30, 4, b""),
            (0, HIDDEN, 3, good),
            (0, 3 * HIDDEN, 1, good),
            (2, 3, HIDDEN, good),
            (MAX_U32, 3, HIDDEN, good),
        ):
            fails(
                server, method, kind(layer=layer, rows=number, hidden=hidden, data=data).SerializeToString()
            )
            count += 1
    tries("tensors of other sizes than they say", count)


def test_rows_that_are_no_numbers(server: Live, tries: Tries) -> None:
    """Such rows fail alone; the smallest and the largest numbers are numbers. The workers live on (`unharmed`)."""
    draw, count = np.random.default_rng(), 0
    stub = _router(server)
    for value in (np.nan, np.inf, -np.inf, 3.4e38, -3.4e38, 1e-45, 1.17e-38, -0.0):
        for _ in range(5):
            asked = rp.ForwardRequest(
                layer=1, rows=4, hidden=HIDDEN, data=rows(4, value, draw), priority=MAX_U32
            )
            reply = stub.Forward(asked, timeout=WAIT_S)
            answered = np.frombuffer(reply.data, np.float32).reshape(4, HIDDEN)
            assert np.isfinite(answered).all()
            count += 1
    tries("rows that are no numbers", count)


def test_deadlines_out_of_range(server: Live, tries: Tries) -> None:
    """grpc-timeout as large and as small as it can be written, past and none."""
    tried = 0
    for timeout in (99_999_999 * 3600.0, 1e15, 1e9, 1e-9, 0.0, -5.0, None):
        stream = server.stub.Generate(request(), timeout=timeout)
        with contextlib.suppress(grpc.RpcError):
            list(stream)
        assert stream.code() in (grpc.StatusCode.OK, grpc.StatusCode.DEADLINE_EXCEEDED)
        tried += 1
    operator = operator_pb2_grpc.OperatorStub(server.channel)
    for value in (float("nan"), float("inf"), -1.0, 1e300, 86401.0):
        with pytest.raises(grpc.RpcError) as caught:
            list(operator.Scale(operator_pb2.ScaleRequest(workers=2, timeout_s=value), timeout=WAIT_S))
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        tried += 1
    tries("deadlines out of range", tried)


def test_names_that_write_logs(server: Live, tries: Tries) -> None:
    """What a caller calls things stands in errors and logs in one line and without escapes."""
    count, before = 0, server.serve.err.read_bytes()
    calls: list[tuple[str, Callable[[str], bytes]]] = [
        (GENERATE, lambda text: request(request_id=text).SerializeToString()),
        (ABORT, lambda text: gp.AbortRequest(request_id=text).SerializeToString()),
        (
            GENERATE,
            lambda text: gp.GenerateRequest(
                chat=gp.Chat(messages=[gp.ChatMessage(role=text)])
            ).SerializeToString(),
        ),
        (
            "/colibri.v1.Operator/Drain",
            lambda text: operator_pb2.DrainRequest(worker=text).SerializeToString(),
        ),
        ("/colibri.v1.Operator/Move", lambda text: operator_pb2.MoveRequest(to=text).SerializeToString()),
    ]
    for text in INJECTIONS:
        for method, make in calls:
            reply = server.call(method, make(text))
            assert reply.message.isprintable(), reply.message
            count += 1
    with server.worker_channel() as channel:
        for text in INJECTIONS:
            with contextlib.suppress(grpc.RpcError):
                expert_pb2_grpc.ExpertStub(channel).Handshake(
                    ep.HandshakeRequest(router_name=text, model_hash=text, protocol_max=9), timeout=WAIT_S
                )
            count += 1
    told = server.serve.err.read_bytes()[len(before) :].decode()
    assert "all is well" not in told.splitlines()
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u202e]", told), told
    tries("names that would write logs", count)


def test_no_call_takes_a_path(server: Live, tries: Tries) -> None:
    """CVE-2026-24208, -2023-31036, -2023-43654: models by path or URL. There is no field for one; a name is no path."""
    paths = (
        "../../etc/passwd",
        "/etc/passwd",
        "file:///etc/passwd",
        "http://127.0.0.1:1/x",
        "..%2f..",
        "\\\\host\\c$",
    )
    count = 0
    for path in paths:
        for method in (GENERATE, TOKENIZE):
            kind = gp.GenerateRequest if method == GENERATE else gp.TokenizeRequest
            chat = kind(chat=gp.Chat(messages=[gp.ChatMessage(role=path, content="x")]))
            fails(server, method, chat.SerializeToString())
            count += 1
        for name in ("Drain", "Move"):
            asked = (
                operator_pb2.DrainRequest(worker=path)
                if name == "Drain"
                else operator_pb2.MoveRequest(to=path)
            )
            reply = server.call(f"/colibri.v1.Operator/{name}", asked.SerializeToString())
            assert reply.code is not None
            count += 1
    fields = {
        field.name
        for file in (gp, rp, ep, operator_pb2)
        for message in file.DESCRIPTOR.message_types_by_name.values()
        if message.name.endswith("Request")
        for field in message.fields
    }
    assert [name for name in sorted(fields) if re.search("path|url|file|folder|uri|shm", name)] == []
    tries("paths in names", count)


def test_what_a_plain_client_learns(server: Live, tries: Tries) -> None:
    """CVE-2025-23319 and its sisters: nothing of the machine, its memory or its sockets."""
    told = [str(server.stub.ModelInfo(gp.ModelInfoRequest(), timeout=WAIT_S))]
    told.append(str(_router(server).RouterInfo(rp.RouterInfoRequest(), timeout=WAIT_S)))
    for method in (GENERATE, TOKENIZE, DETOKENIZE, FORWARD, GATE, ABORT, INFO):
        for garbage in (b"\xff" * 9, b"\x0a\xff\xff\xff\xff\x0f", b"\x00", b"\x07"):
            told.append(fails(server, method, garbage))
    for text in told:
        assert not LEAKS.search(text), text
    tries("looks for what leaks", len(told))


def _router(server: Live) -> router_pb2_grpc.RouterStub:
    return router_pb2_grpc.RouterStub(server.channel)
