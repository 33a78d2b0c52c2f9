"""Every error that a server sends, real gRPC throughout, looked through for its machine's paths, keys and tokens."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from colibri.client import Client
from colibri.errors import CheckpointError, ColibriError, WorkerLost
from colibri.kernels.api import ComputeMode
from colibri.placement import Directory
from colibri.rpc.server import Service, build_server
from colibri.rpc.status import ERROR_KEY, PEER_KEY
from colibri.security.public_text import hide, public_text
from colibri.v1 import expert_pb2, expert_pb2_grpc
from tests.integration.bad_input.live import Live, Reply, live
from tests.integration.bad_input.thrown import all_cases, targets, throw
from tests.support.expert_servers import MoeBench, membership_of
from tests.support.pki import Pki, new_token
from tests.support.serving import serving
from tests.support.worker_client import WAIT_S, WorkerClient, limits_of, worker_process

#: What lies on this machine and nowhere in a request. A path of two components or more, or a descriptor's.
_PATH = re.compile(r"(?<![\w.])/(?:tmp|root|home|work|usr|var|etc|proc|run|opt|srv)\b")


def leaks(text: str, *secrets: str) -> str:
    """What of a text should not have left the server."""
    found = _PATH.search(text)
    if found:
        return f"a path in {text!r}"
    return next(
        (f"{secret!r} in {text!r}" for secret in (*secrets, "PRIVATE KEY", "Traceback") if secret in text), ""
    )


def whole(error: grpc.RpcError) -> str:
    """All that the server sent."""
    assert isinstance(error, grpc.Call)
    return f"{error.details()} {list(error.trailing_metadata() or ())}"


def test_no_refusal_of_bad_input_tells_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All cases of docs/errors.md that go over the wire."""
    heard: list[str] = []
    for name in ("call", "exchange"):
        plain = getattr(Live, name)

        def recorded(self: Live, *args: Any, plain: Any = plain, **kwargs: Any) -> Any:
            result = plain(self, *args, **kwargs)
            heard.append((result if isinstance(result, Reply) else result[1]).message)
            return result

        monkeypatch.setattr(Live, name, recorded)
    with live(tmp_path) as server, targets(server) as against:
        cases = all_cases(against)
        for case in cases:
            throw(against, case)
    assert len(heard) == len(cases) > 140
    assert [leak for text in heard if (leak := leaks(text))] == []


class Odd(Exception):
    pass


RAISED: dict[str, Exception] = {
    "checkpoint": CheckpointError.of(Path("/srv/models/m/model.safetensors"), "w1", "BF16", "/root/x y/z"),
    "lost": WorkerLost(
        "w0: stream lost: UNAVAILABLE: failed to connect: unix:/tmp/colibri-run-x/w0.1.sock",
        peer="unix:/tmp/colibri-run-x/w0.1.sock",
    ),
    "said": WorkerLost(
        'worker w0 exited; it said: File "/usr/lib/python3/x.py", line 3 | token clb_secretsecretsecret'
    ),
    "os": FileNotFoundError(2, "No such file", "/home/user/secret"),
    "bare": Exception("/home/user/secret"),
    "value": ValueError("key is -----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----"),
    "odd": Odd("/etc/shadow"),
    "rpc": grpc.RpcError("/var/run/inner.sock"),
}


@contextmanager
def raising(folder: Path) -> Iterator[grpc.Channel]:
    """A server whose every method raises what its name says."""

    def handler(name: str) -> list[grpc.RpcMethodHandler[Any, Any]]:
        def unary(request: bytes, context: grpc.ServicerContext) -> bytes:
            raise RAISED[name]

        def stream(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            yield b"one"
            raise RAISED[name]

        return [grpc.unary_unary_rpc_method_handler(unary), grpc.unary_stream_rpc_method_handler(stream)]

    handlers = {
        f"{kind}{name}": found for name in RAISED for kind, found in zip("us", handler(name), strict=True)
    }
    service = Service(
        "test.Raising",
        lambda server: server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("test.Raising", handlers),)
        ),
    )
    server = build_server([service], listen=f"unix:{folder}/raising.sock", name="server")
    server.start()
    try:
        with grpc.insecure_channel(server.target) as channel:
            yield channel
    finally:
        server.stop(0)


def test_nothing_that_is_raised_tells_a_path(tmp_path: Path) -> None:
    hide(Path("/root/x y"))
    with raising(tmp_path) as channel:
        for name in RAISED:
            unary: Any = channel.unary_unary(f"/test.Raising/u{name}")
            with pytest.raises(grpc.RpcError) as caught:
                unary(b"", timeout=WAIT_S)
            stream: Any = channel.unary_stream(f"/test.Raising/s{name}")
            replies = stream(b"", timeout=WAIT_S)
            assert next(replies) == b"one"
            with pytest.raises(grpc.RpcError) as after:
                next(replies)
            for error in (caught.value, after.value):
                text = whole(error)
                assert leaks(text, "secret", "colibri-run", "shadow", "y/z") == "", name
                # Typed all the same.
                assert ERROR_KEY in text


def test_a_damaged_checkpoint_is_named_without_its_folder(tiny_mixtral: Path, tmp_path: Path) -> None:
    """Weights that are cut while a worker runs, or read as something else."""
    import shutil

    model = tmp_path / "private folder"
    shutil.copytree(tiny_mixtral, model)
    with worker_process(model, f"unix:{tmp_path}/w.sock") as worker:
        client = WorkerClient(worker.target, limits_of(model, "fp32"))
        try:
            for file in model.glob("*.safetensors"):
                os.truncate(file, 4096)
            request = expert_pb2.LoadRequest(epoch=1, experts=[expert_pb2.ExpertId(layer=0, expert=0)])
            with pytest.raises(grpc.RpcError) as caught:
                list(client.stub.Load(request, timeout=60))
        finally:
            client.close()
    assert leaks(whole(caught.value), "private", "folder/", str(tmp_path)) == ""


def test_lost_workers_are_named_without_their_sockets(tiny_mixtral: Path, tmp_path: Path) -> None:
    """A router behind whose unix sockets nobody is any more."""
    bench = MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path)
    x = bench.rows(np.random.default_rng(1), 4)
    with bench.workers(2) as servers:
        directory = Directory(membership_of(bench.spread(2), *servers.values()))
        with bench.remote(directory, connect_s=0.5) as (router, executor):
            assert not executor.connect()
            for server in servers.values():
                server.stop(0.0)  # abruptly: the router is left with links to nobody
            errors = [*router.forward(0, x).failed.values(), *executor.connect().values()]
    assert errors
    # What `abort` sends of them.
    assert [leak for error in errors if (leak := leaks(public_text(error.message), str(tmp_path)))] == []


def test_a_deployment_that_breaks_tells_nothing(tiny_mixtral: Path, pki: Pki, tmp_path: Path) -> None:
    """Workers killed and their checkpoint taken away while requests run: what clients hear, and what the server's log
    holds of tokens and keys."""
    import shutil

    model = tmp_path / "model"
    shutil.copytree(tiny_mixtral, model)
    tokens, own = new_token(tmp_path, "alice")
    token = own.read_text().strip()
    heard: list[str] = []
    options = [
        f"--tls-cert={pki.cert('coordinator')}",
        f"--tls-key={pki.key('coordinator')}",
        f"--tokens={tokens}",
        "--workers=2",
        "--restart-pause=0.1",
    ]
    with (
        serving(model, tmp_path, *options) as served,
        Client(served.target, security=pki.shows(token_file=own)) as client,
    ):
        client.generate([5, 6, 7], max_tokens=4, ignore_eos=True).answer()
        for file in model.glob("*.safetensors"):
            file.unlink()
        for pid in served.workers():
            os.kill(pid, signal.SIGKILL)
        for _ in range(2):
            try:
                client.generate([5, 6, 7], max_tokens=40, ignore_eos=True, timeout_s=8.0).answer()
            except ColibriError as error:
                heard.append(f"{error.message} {error.peer}")
        log = served.err.read_text()
    assert heard
    assert [leak for text in heard if (leak := leaks(text, token, str(tmp_path)))] == []
    key = pki.key("coordinator").read_text().splitlines()[1]
    assert token not in log
    assert key not in log
    assert "PRIVATE KEY" not in log
    assert PEER_KEY  # its value is looked at above, as part of the error


def test_a_worker_tells_a_stranger_of_no_path(tmp_path: Path, tiny_mixtral: Path) -> None:
    """Status and Handshake of a worker that anybody on the machine reaches."""
    bench = MoeBench(tiny_mixtral, ComputeMode.FP32, tmp_path)
    with bench.worker("w0", "tcp") as server, grpc.insecure_channel(server.target) as channel:
        stub: expert_pb2_grpc.ExpertStub = expert_pb2_grpc.ExpertStub(channel)
        assert leaks(str(stub.Status(expert_pb2.StatusRequest(experts=True), timeout=WAIT_S))) == ""
        with pytest.raises(grpc.RpcError) as caught:
            stub.Handshake(expert_pb2.HandshakeRequest(router_name="/etc/passwd"), timeout=WAIT_S)
        assert leaks(whole(caught.value)) == ""
