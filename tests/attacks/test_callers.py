"""What one caller can do to another's requests by their ids: nothing, and nothing is learnt of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from colibri.coordinator.engine import EngineOptions
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from colibri.security.channel import ChannelSecurity
from colibri.security.server import ServerSecurity
from colibri.v1 import generation_pb2 as pb
from colibri.v1 import generation_pb2_grpc
from tests.support.pki import Pki, new_token
from tests.support.served import serve
from tests.support.tiny_engine import TINY, WAIT_S, TinyModel, Turnstile, make_tiny, wait_for
from tests.support.tries import Tries

OPTIONS = EngineOptions(kv_tokens=2048, max_running=4, max_queued=8)
TOKENS = 12
Metadata = tuple[tuple[str, str], ...]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    backend = make_backend("cpu", threads=1)
    opened = TinyModel.open(
        make_tiny(tmp_path_factory.mktemp("callers") / "m", replace(TINY, layers=1)),
        backend,
        ComputeMode.BF16,
    )
    yield opened
    opened.tokenizer.close()
    backend.close()


def request(request_id: str, tokens: int = TOKENS) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        request_id=request_id,
        token_ids=pb.TokenIds(ids=[5, 9, 42]),
        stopping=pb.Stopping(max_tokens=tokens, ignore_eos=True),
    )


def finished(replies: Iterator[pb.GenerateReply]) -> pb.Finished:
    *_, last = replies
    return last.finished


def attack(
    stub: generation_pb2_grpc.GenerationStub, turnstile: Turnstile, alice: Metadata, mallory: Metadata
) -> int:
    """Mallory against Alice's request `job`, which runs meanwhile. Returns how often he tried."""
    theirs = stub.Generate(request("job"), timeout=WAIT_S, metadata=alice)
    assert next(theirs).accepted.request_id == "job"
    turnstile.wait_step()
    # Neither the id nor guesses of it end her request, or tell whether it runs.
    guesses = ["job", *("".join(each) for each in itertools.product("jJ", "oO", "bB"))]
    for guess in guesses:
        assert not stub.Abort(pb.AbortRequest(request_id=guess), timeout=WAIT_S, metadata=mallory).found
    own = stub.Generate(request("job", 400), timeout=WAIT_S, metadata=mallory)
    assert next(own).accepted.request_id == "job"
    # To herself it is taken.
    with pytest.raises(grpc.RpcError) as caught:
        list(stub.Generate(request("job"), timeout=WAIT_S, metadata=alice))
    assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
    # His own he may end.
    assert stub.Abort(pb.AbortRequest(request_id="job"), timeout=WAIT_S, metadata=mallory).found
    turnstile.open()
    assert finished(own).reason == pb.FINISH_REASON_ABORT
    ended = finished(theirs)
    assert (ended.reason, ended.usage.completion_tokens) == (pb.FINISH_REASON_LENGTH, TOKENS)
    assert not stub.Abort(pb.AbortRequest(request_id="job"), timeout=WAIT_S, metadata=alice).found
    return len(guesses) + 1


def test_by_tokens(model: TinyModel, tmp_path: Path, tries: Tries) -> None:
    tokens, own = new_token(tmp_path, "alice")
    _, other = new_token(tmp_path, "mallory")
    alice, mallory = ((("authorization", f"Bearer {file.read_text().strip()}"),) for file in (own, other))
    turnstile = Turnstile(model.router)
    with (
        serve(
            model,
            tmp_path,
            OPTIONS,
            turnstile,
            listen="127.0.0.1:0",
            security=ServerSecurity(tokens=tokens),
            shown=ChannelSecurity(token_file=own),
        ) as served,
        grpc.insecure_channel(served.target) as channel,
    ):
        stub = generation_pb2_grpc.GenerationStub(channel)
        tries("ids of another caller's requests", attack(stub, turnstile, alice, mallory))


def test_by_certificates(model: TinyModel, tmp_path: Path, tries: Tries) -> None:
    """Neither has a token; the connection says who calls."""
    pki = Pki.make(tmp_path / "pki")
    turnstile = Turnstile(model.router)
    with serve(
        model,
        tmp_path,
        OPTIONS,
        turnstile,
        listen="127.0.0.1:0",
        security=pki.serves(mutual=True),
        shown=pki.shows("client"),
    ) as served:
        channels = [pki.shows(name).open(served.target, []) for name in ("client", "operator")]
        alice, mallory = (generation_pb2_grpc.GenerationStub(channel) for channel in channels)
        theirs = alice.Generate(request("job"), timeout=WAIT_S)
        assert next(theirs).accepted.request_id == "job"
        turnstile.wait_step()
        assert not mallory.Abort(pb.AbortRequest(request_id="job"), timeout=WAIT_S).found
        turnstile.open()
        assert finished(theirs).reason == pb.FINISH_REASON_LENGTH
        for channel in channels:
            channel.close()
    tries("ids of another caller's requests", 1)


def test_equal_prompts_share_nothing_between_requests(model: TinyModel, tmp_path: Path, tries: Tries) -> None:
    """No cache of prompts, so that no caller learns from its time whether another has asked the same."""
    turnstile = Turnstile(model.router)
    prompt = list(range(5, 69))
    with (
        serve(model, tmp_path, OPTIONS, turnstile) as served,
        grpc.insecure_channel(served.target) as channel,
    ):
        stub, streams = generation_pb2_grpc.GenerationStub(channel), []
        for number in range(3):
            asked = request(f"r{number}")
            asked.token_ids.ids[:] = prompt
            streams.append(stub.Generate(asked, timeout=WAIT_S))
            next(streams[-1])
        turnstile.wait_step()
        turnstile.let()
        turnstile.wait_step()
        pages = -(-(len(prompt) + TOKENS) // OPTIONS.kv_page)
        wait_for("all to be admitted", lambda: served.engine.stats().running == 3)
        assert served.engine.stats().kv_pages_used == 3 * pages
        turnstile.open()
        for stream in streams:
            assert finished(stream).reason == pb.FINISH_REASON_LENGTH
        assert served.engine.stats().prefill_rows == 3 * len(prompt)
    tries("prompts of another caller", 3)
