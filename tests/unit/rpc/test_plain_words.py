"""A call that no Colibri server answered is told in words that say what to look at; real channels, real gRPC texts."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from colibri.client import Client
from colibri.client.operator import Operator
from colibri.errors import ColibriError, WorkerLost
from colibri.rpc.plain_words import plain_words
from colibri.rpc.server import build_server


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("127.0.0.1:1", "127.0.0.1:1: nobody listens there (connection refused)"),
        ("{folder}/no.sock", "nobody listens there (there is no such socket)"),
        ("no-such-host.invalid:1", "no-such-host.invalid:1: no host goes by this name"),
    ],
)
def test_where_nobody_listens(target: str, told: str, tmp_path: Path) -> None:
    place = target.format(folder=f"unix:{tmp_path}")
    with Client(place) as client, pytest.raises(WorkerLost) as caught:
        client.model_info(timeout_s=20)
    assert told in caught.value.message
    assert caught.value.retryable


def test_a_server_of_another_kind() -> None:
    server = build_server([], listen="127.0.0.1:0")
    server.start()
    try:
        with Operator(server.target) as operator, pytest.raises(ColibriError) as caught:
            operator.status(timeout_s=20)
    finally:
        server.stop(0)
    assert (
        caught.value.message
        == f"{server.target}: {plain_words(grpc.StatusCode.UNIMPLEMENTED, 'Method not found!')}"
    )
    assert "`colibri serve` answers prompts and operators" in caught.value.message
    assert not caught.value.retryable


def test_what_is_not_known_stays_as_it_is() -> None:
    assert plain_words(grpc.StatusCode.UNAVAILABLE, "tea time") == "UNAVAILABLE: tea time"
    assert plain_words(grpc.StatusCode.UNIMPLEMENTED, "not today") == "UNIMPLEMENTED: not today"
