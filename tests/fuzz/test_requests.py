"""Any GenerateRequest is answered or refused precisely: by validation alone, and by a real server with workers."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colibri.coordinator.validation.requests import Draws, RequestLimits, to_request
from colibri.deadline import Deadline
from colibri.errors import InvalidInput
from colibri.models.chat_renderer import ChatRenderer, load_chat_renderer
from colibri.models.checkpoint import Checkpoint
from colibri.models.tokenizer import Tokenizer
from colibri.v1 import generation_pb2 as pb
from tests.fuzz.strategies import requests
from tests.integration.bad_input.folders import CONTEXT, VOCAB, good
from tests.integration.bad_input.live import WAIT_S, Live, live

#: field: expected ..., got ...; and the field is one of the message's.
PRECISE = re.compile(r"([a-z_]+)[][.a-z_0-9]*: expected .+, got .+", re.DOTALL)
FIELDS = {field.name for field in pb.GenerateRequest.DESCRIPTOR.fields} | {"prompt", "messages"}


def precise(message: str) -> None:
    found = PRECISE.fullmatch(message)
    assert found, message
    assert found.group(1) in FIELDS, message
    assert "\n" not in message


def refused(code: grpc.StatusCode, details: str) -> None:
    assert code is grpc.StatusCode.INVALID_ARGUMENT, (code, details)
    if not details.startswith("request: expected a colibri.v1.GenerateRequest, got "):
        precise(details)


@dataclass(frozen=True, slots=True)
class Model:
    checkpoint: Checkpoint
    tokenizer: Tokenizer
    chat: ChatRenderer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = good(tmp_path_factory.mktemp("good") / "model")
    checkpoint = Checkpoint.open(folder)
    tokenizer = Tokenizer.load(folder, checkpoint.config)
    chat = load_chat_renderer(folder, tokenizer)
    assert chat is not None
    yield Model(checkpoint, tokenizer, chat)
    chat.close()
    tokenizer.close()


@settings(deadline=None, max_examples=400, suppress_health_check=list(HealthCheck))
@given(message=requests())
def test_validation_accepts_or_names_the_field(model: Model, message: pb.GenerateRequest) -> None:
    draws = Draws(seed=lambda: 1, request_id=lambda: "made")
    limits = RequestLimits(VOCAB, CONTEXT, model.checkpoint.generation)
    try:
        asked = to_request(message, limits, model.tokenizer, Deadline(), draws, model.chat)
    except InvalidInput as error:
        precise(error.message)
        return
    prompt = asked.prompt_ids
    assert 1 <= len(prompt) < CONTEXT
    assert prompt.max() < VOCAB
    assert 1 <= asked.max_tokens <= CONTEXT - len(prompt)
    assert 0 <= asked.min_tokens <= asked.max_tokens
    assert len(asked.resumed_ids) <= asked.max_tokens
    assert 1 <= asked.n <= 16
    assert len(asked.stop) <= 16
    assert asked.sampling.temperature == 0 or 1e-6 <= asked.sampling.temperature <= 100
    assert 0 < asked.sampling.top_p <= 1
    assert 0 <= asked.sampling.min_p <= 1
    assert 0 <= asked.sampling.top_k <= VOCAB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    with live(tmp_path_factory.mktemp("live")) as found:
        yield found


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(message=requests(), cut=st.integers(-1, 200))
def test_a_server_answers_or_names_the_field(server: Live, message: pb.GenerateRequest, cut: int) -> None:
    """`cut`: where the request's bytes end, -1: nowhere."""
    data = message.SerializeToString()
    if 0 <= cut < len(data) and cut % 7 == 0:
        data = data[:cut]
    call: Any = server.channel.unary_stream(
        "/colibri.v1.Generation/Generate", None, pb.GenerateReply.FromString
    )
    finished = 0
    try:
        for reply in call(data, timeout=WAIT_S):
            finished += reply.HasField("finished")
        assert finished >= 1
    except grpc.RpcError as error:
        refused(error.code(), error.details() or "")


def test_the_server_took_no_harm(server: Live) -> None:
    assert server.harm() == ""
