"""Bearer tokens against a real server: who is answered, who is refused, with which words, and at what cost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from colibri.client import AsyncClient, ChannelSecurity, Client, Retry
from colibri.client.operator import Operator
from colibri.coordinator.engine import EngineOptions
from colibri.errors import ColibriError, ConfigError, PermissionDenied, Unauthenticated
from colibri.rpc.status import from_rpc_error
from colibri.security.server import ServerSecurity
from colibri.security.tokens import LOOK_S
from tests.support.pki import Pki, new_token
from tests.support.served import Served, serve
from tests.support.tiny_engine import WAIT_S, TinyModel

PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"
OPTIONS = EngineOptions(kv_tokens=4096)
GENERATE = "/colibri.v1.Generation/Generate"
TEXTS = {
    "none": "authorization: expected a bearer token of this server, got none",
    "unknown": "authorization: expected a bearer token of this server, got one that it does not know",
    "malformed": "authorization: expected Bearer and a token, got something else",
}


@dataclass
class Guarded:
    served: Served
    tokens: Path
    client: Path
    operator: Path
    ca: Pki

    def shows(self, token_file: Path | None) -> ChannelSecurity:
        return self.ca.shows(token_file=token_file)


@pytest.fixture(scope="module")
def guarded(pki: Pki, tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("tokens")
    tokens, client = new_token(folder, "alice")
    _, operator = new_token(folder, "ops", "operator")
    security = pki.serves(tokens=tokens)
    shown = pki.shows(token_file=client)
    with serve(tiny, folder, OPTIONS, listen="127.0.0.1:0", security=security, shown=shown) as served:
        yield Guarded(served, tokens, client, operator, pki)


def channel_to(guarded: Guarded) -> grpc.Channel:
    return grpc.secure_channel(
        guarded.served.target, grpc.ssl_channel_credentials(guarded.ca.ca.read_bytes())
    )


def raw(channel: grpc.Channel, method: str, body: bytes, *metadata: tuple[str, str]) -> ColibriError:
    """The refusal of a call with these very bytes."""
    call: Any = channel.unary_stream(method)
    with pytest.raises(grpc.RpcError) as caught:
        list(call(body, timeout=WAIT_S, metadata=metadata))
    return from_rpc_error(caught.value, "server")


def test_a_client_is_answered_and_may_not_operate(guarded: Guarded) -> None:
    assert len(guarded.served.client.generate([5, 6], max_tokens=3, ignore_eos=True).answer().ids) == 3
    with (
        pytest.raises(PermissionDenied) as caught,
        Operator(guarded.served.target, security=guarded.shows(guarded.client)) as operator,
    ):
        operator.status()
    text = "colibri.v1.Operator: expected a token of scope operator, got alice's, of scope client"
    assert caught.value.message == text
    assert f"`{text}`" in PAGE.read_text()


def test_an_operator_may_both(guarded: Guarded) -> None:
    shown = guarded.shows(guarded.operator)
    with Operator(guarded.served.target, security=shown) as operator:
        assert operator.status().model == "tiny"
    with Client(guarded.served.target, security=shown) as client:
        assert client.model_info().name == "tiny"


@pytest.mark.parametrize(
    ("metadata", "text"),
    [
        ((), "none"),
        ((("authorization", "Bearer " + "x" * 40),), "unknown"),
        ((("authorization", "bearer " + "x" * 40),), "unknown"),
        ((("authorization", "Basic dXNlcjpwYXNz"),), "malformed"),
        ((("authorization", "Bearer"),), "malformed"),
        ((("authorization", "Bearer " + "x" * 4000),), "malformed"),
        ((("authorization", "Bearer a b"),), "malformed"),
    ],
)
def test_others_are_refused(guarded: Guarded, metadata: tuple[tuple[str, str], ...], text: str) -> None:
    with channel_to(guarded) as channel:
        error = raw(channel, GENERATE, b"", *metadata)
    assert isinstance(error, Unauthenticated)
    assert error.message == TEXTS[text]
    assert not error.retryable
    assert f"`{TEXTS[text]}`" in PAGE.read_text()


def test_every_client_tells_it(guarded: Guarded) -> None:
    async def by_async() -> None:
        async with AsyncClient(guarded.served.target, security=guarded.shows(None), retry=Retry()) as client:
            await client.generate([5]).answer()

    with pytest.raises(Unauthenticated):
        asyncio.run(by_async())
    with (
        pytest.raises(Unauthenticated),
        Client(guarded.served.target, security=guarded.shows(None), retry=Retry()) as client,
    ):
        client.generate([5]).answer()


def test_nothing_of_a_strangers_request_is_read(guarded: Guarded) -> None:
    """Bytes that are no message are refused for want of a token, not for what they are."""
    with channel_to(guarded) as channel:
        assert isinstance(raw(channel, GENERATE, b"\xff" * (1 << 20)), Unauthenticated)
        token = guarded.client.read_text().strip()
        known = raw(channel, GENERATE, b"\xff\xff", ("authorization", f"Bearer {token}"))
    assert known.message.startswith("request: expected a colibri.v1.GenerateRequest")


def test_health_is_open_and_reflection_is_not(guarded: Guarded) -> None:
    with channel_to(guarded) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=WAIT_S)
        assert reply.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_token_may_come_as_itself(guarded: Guarded) -> None:
    shown = ChannelSecurity(tls_ca=guarded.ca.ca, token=guarded.client.read_text().strip())
    assert guarded.client.read_text().strip() not in repr(shown)
    with Client(guarded.served.target, security=shown) as client:
        assert client.model_info().name == "tiny"


def test_the_file_counts_as_it_is_now(
    pki: Pki, tiny: TinyModel, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A token that is added is taken and one that is removed is not, within a second or so, without a restart; a file
    that cannot be read changes nothing."""
    tokens, first = new_token(tmp_path, "first")
    with serve(
        tiny,
        tmp_path,
        OPTIONS,
        security=ServerSecurity(tokens=tokens),
        shown=ChannelSecurity(token_file=first),
    ) as served:

        def refused(token: Path) -> bool:
            with Client(served.target, security=ChannelSecurity(token_file=token)) as client:
                try:
                    client.model_info()
                except Unauthenticated:
                    return True
            return False

        _, second = new_token(tmp_path, "second")
        until(lambda: not refused(second))
        assert not refused(first)
        lines = tokens.read_text().splitlines(keepends=True)
        write(tokens, "".join(line for line in lines if not line.startswith("first ")))
        until(lambda: refused(first))
        assert not refused(second)
        with caplog.at_level(logging.ERROR):
            write(tokens, "nonsense\n")
            until(lambda: not refused(second) and "stay as they were" in caplog.text)
        assert f"{tokens}:1: expected NAME SCOPE TOKEN [EXPIRES], got 1 words" in caplog.text


def test_an_expired_token_says_so(tiny: TinyModel, tmp_path: Path) -> None:
    tokens, own = new_token(tmp_path, "brief", days=1.5 / 86400)
    with serve(
        tiny, tmp_path, OPTIONS, security=ServerSecurity(tokens=tokens), shown=ChannelSecurity(token_file=own)
    ) as served:
        time.sleep(2.0)
        with pytest.raises(Unauthenticated) as caught:
            served.client.model_info()
    assert caught.value.message.startswith(
        "authorization: expected a token that is still valid, got brief's, which expired at 20"
    )
    assert (
        "authorization: expected a token that is still valid, got brief's, which expired at"
        in PAGE.read_text()
    )


def test_guesses_fill_no_log(guarded: Guarded, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        channel_to(guarded) as channel,
        ThreadPoolExecutor(100) as pool,
    ):
        # All at once: most of these are told late.
        futures = [
            pool.submit(raw, channel, GENERATE, b"", ("authorization", f"Bearer guess-{number:016d}"))
            for number in range(100)
        ]
        for future in futures:
            future.result(WAIT_S)
    assert sum("refused" in record.message for record in caplog.records) <= 2
    assert "guess" not in caplog.text
    assert guarded.served.client.model_info().name == "tiny"


def test_a_token_does_not_travel_in_clear(guarded: Guarded) -> None:
    shown = ChannelSecurity(token_file=guarded.client)
    with pytest.raises(
        ConfigError, match=r"the CA of 192\.0\.2\.1:50051, since a token must not go there in clear"
    ):
        Client("192.0.2.1:50051", security=shown)
    Client("127.0.0.1:1", security=shown).close()
    Client("192.0.2.1:50051", security=ChannelSecurity(token_file=guarded.client, insecure=True)).close()


def write(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o600)


def until(holds: Any) -> None:
    end = time.monotonic() + 10 * LOOK_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)
