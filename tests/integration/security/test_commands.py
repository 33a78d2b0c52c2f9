"""The commands themselves: what they refuse to serve, and a deployment with everything on, used from outside."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from colibri.client.operator import Operator
from colibri.errors import PermissionDenied
from colibri.v1 import expert_pb2, expert_pb2_grpc
from tests.support.clusters import answer, deployed, eventually
from tests.support.pki import Pki, new_token
from tests.support.serving import Serving, serving

PAGE = Path(__file__).resolve().parents[3] / "docs" / "security.md"
COLIBRI = [sys.executable, "-P", "-m", "colibri.cli.main"]
PROMPT = (5, 9, 42, 7, 199)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COLIBRI, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def outside() -> str | None:
    """An address of this machine that is not loopback."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # sends nothing: it asks the kernel for a route
        found = str(probe.getsockname()[0])
        return None if found.startswith("127.") else found
    return None


@pytest.mark.parametrize("verb", ["serve", "router", "expert"])
@pytest.mark.parametrize("listen", ["0.0.0.0:50051", "[::]:50051", "0:50051"])
def test_nothing_is_served_to_others_in_clear(verb: str, listen: str, tiny_mixtral: Path) -> None:
    more = ["--expert=127.0.0.1:1"] if verb == "router" else []
    done = run(verb, str(tiny_mixtral), f"--listen={listen}", *more)
    text = (
        "--listen: expected a loopback address or a unix socket, for want of --tls-cert and --tls-key (--insecure: "
        f"serve in clear), got {listen}, which other machines reach"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"colibri {verb}: {text}\n")
    assert f"`{text.replace(listen, '0.0.0.0:50051')}`" in PAGE.read_text()


@pytest.mark.parametrize("verb", ["serve", "router"])
def test_nothing_is_served_to_anybody(verb: str, tiny_mixtral: Path, pki: Pki) -> None:
    more = ["--expert=127.0.0.1:1"] if verb == "router" else []
    tls = [f"--tls-cert={pki.cert('coordinator')}", f"--tls-key={pki.key('coordinator')}"]
    done = run(verb, str(tiny_mixtral), "--listen=0.0.0.0:50051", *tls, *more)
    text = (
        "--listen: expected a loopback address or a unix socket, for want of --tokens or --client-ca (--insecure: "
        "serve anybody), got 0.0.0.0:50051, which other machines reach"
    )
    assert (done.returncode, done.stderr) == (1, f"colibri {verb}: {text}\n")
    assert f"`{text}`" in PAGE.read_text()


def test_refusals_of_files(tiny_mixtral: Path, pki: Pki, tmp_path: Path) -> None:
    open_key = tmp_path / "open.key"
    open_key.write_bytes(pki.key("worker").read_bytes())
    open_key.chmod(0o644)
    cert, key, ca = (
        f"--tls-cert={pki.cert('worker')}",
        f"--tls-key={pki.key('worker')}",
        f"--client-ca={pki.ca}",
    )
    for arguments, text, page in (
        ([cert], "--tls-key: expected a file, with --tls-cert, got none", None),
        (
            [cert, key],
            "--client-ca: expected the CA of this worker's callers, with --tls-cert, got none",
            None,
        ),
        (
            [cert, f"--tls-key={open_key}", ca],
            f"--tls-key: expected a file that others cannot read or write (chmod 600), got {open_key}, mode 0644",
            "FILE",
        ),
        (
            [cert, f"--tls-key={pki.key('client')}", ca],
            f"--tls-key: expected the key of {pki.cert('worker')}, got {pki.key('client')}, another one's",
            "FILE",
        ),
        (
            [f"--tls-cert={pki.cert('client')}", f"--tls-key={pki.key('client')}", ca],
            f"--tls-cert: expected a certificate for servers, got {pki.cert('client')}, for clients only",
            "FILE",
        ),
    ):
        done = run("expert", str(tiny_mixtral), "--backend=reference", *arguments)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"colibri expert: {text}")
        if page is None:
            assert f"`{text}`" in PAGE.read_text()


@pytest.fixture(scope="module")
def deployment(
    tiny_mixtral: Path, pki: Pki, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Serving, Path, Path]]:
    """Open to other machines: TLS and tokens for clients, mTLS to two workers on TCP."""
    folder = tmp_path_factory.mktemp("secured")
    tokens, client = new_token(folder, "alice")
    _, operator = new_token(folder, "ops", "operator")
    options = [
        f"--tls-cert={pki.cert('coordinator')}",
        f"--tls-key={pki.key('coordinator')}",
        f"--tokens={tokens}",
        f"--worker-ca={pki.ca}",
        f"--worker-tls-cert={pki.cert('worker')}",
        f"--worker-tls-key={pki.key('worker')}",
        "--workers=2",
        "--replicas=2",
        "--transport=tcp",
    ]
    with serving(tiny_mixtral, folder, *options, listen="0.0.0.0:0") as served:
        yield served, client, operator


def local(served: Serving) -> str:
    return f"127.0.0.1:{served.target.rpartition(':')[2]}"


def generated(served: Serving, pki: Pki, token: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return run(
        "generate",
        f"--target={local(served)}",
        f"--tls-ca={pki.ca}",
        f"--token-file={token}",
        f"--prompt-ids={','.join(map(str, PROMPT))}",
        "--max-tokens=8",
        "--ignore-eos",
        "--receipts",
        "--json",
        *more,
    )


def test_the_whole_deployment_answers_as_one_process(
    deployment: tuple[Serving, Path, Path], pki: Pki, tiny_mixtral: Path
) -> None:
    served, client, operator = deployment
    with deployed(tiny_mixtral, 0) as oracle:
        expected = answer(oracle, PROMPT, max_tokens=8)
    done = generated(served, pki, client)
    assert done.returncode == 0, done.stderr
    assert [f"{receipt:016x}" for receipt in expected.receipts] == receipts(json.loads(done.stdout))
    shown = [f"--target={local(served)}", f"--tls-ca={pki.ca}", f"--token-file={operator}", "--json"]
    status = run("status", *shown)
    assert status.returncode == 0, status.stderr
    workers = json.loads(status.stdout)["workers"]
    # Same host, mutually authenticated: the fast path.
    assert {(worker["state"], worker["link"]) for worker in workers} == {("serving", "shared-memory")}
    assert all(worker["target"].startswith("127.0.0.1:") for worker in workers)
    scaled = run("scale", "3", *shown, "--timeout=60")
    assert scaled.returncode == 0, scaled.stderr


def receipts(found: object) -> list[str]:
    """Of the one answer in the JSON of `generate`, wherever it keeps them."""
    if isinstance(found, dict):
        if "receipts" in found:
            return [str(receipt) for receipt in found["receipts"]]
        return next((hit for value in found.values() if (hit := receipts(value))), [])
    if isinstance(found, list):
        return next((hit for value in found if (hit := receipts(value))), [])
    return []


def test_a_worker_that_dies_comes_back_behind_tls(deployment: tuple[Serving, Path, Path], pki: Pki) -> None:
    served, client, operator = deployment
    with Operator(local(served), security=pki.shows(token_file=operator)) as asked:
        before = asked.status()
        os.kill(before.workers[0].pid, 9)
        assert generated(served, pki, client).returncode == 0
        eventually(
            lambda: any(
                worker.name == before.workers[0].name
                and worker.state == "serving"
                and worker.incarnation != before.workers[0].incarnation
                for worker in asked.status().workers
            ),
            30.0,
            "the worker is back",
        )
    assert generated(served, pki, client).returncode == 0


def test_refusals_reach_the_command_line(deployment: tuple[Serving, Path, Path], pki: Pki) -> None:
    served, client, _ = deployment
    target = local(served)
    for arguments, text in (
        ([], f"{target}: the server speaks TLS, this client does not: give its CA with --tls-ca"),
        ([f"--tls-ca={pki.ca}"], "authorization: expected a bearer token of this server, got none"),
        (
            [f"--tls-ca={pki.ca}", f"--token-file={client}"],
            "colibri.v1.Operator: expected a token of scope operator, got alice's, of scope client",
        ),
        (
            [f"--tls-ca={pki.cert('other')}", f"--token-file={client}"],
            f"{target}: the server's certificate is of no CA in --tls-ca",
        ),
    ):
        done = run("status", f"--target={target}", *arguments)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"colibri status: {text}")


def test_workers_take_nobody_else(deployment: tuple[Serving, Path, Path], pki: Pki) -> None:
    served, _, operator = deployment
    with Operator(local(served), security=pki.shows(token_file=operator)) as asked:
        target = asked.status().workers[0].target
    with pki.shows("client").open(target, []) as channel, pytest.raises(grpc.RpcError) as caught:
        expert_pb2_grpc.ExpertStub(channel).Status(expert_pb2.StatusRequest(), timeout=20)
    assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_no_reflection_where_others_reach_it(deployment: tuple[Serving, Path, Path], pki: Pki) -> None:
    served, client, _ = deployment
    shown = pki.shows(token_file=client)
    with shown.open(local(served), []) as channel:
        reflect: Any = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        replies = reflect(iter([b""]), timeout=20, metadata=shown.metadata())
        with pytest.raises(grpc.RpcError) as caught:
            next(replies)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_insecure_is_open_but_for_operators_from_elsewhere(tiny_mixtral: Path, tmp_path: Path) -> None:
    address = outside()
    if address is None:
        pytest.skip("this machine has no address but loopback")
    with serving(
        tiny_mixtral, tmp_path, "--workers=0", "--insecure", "--reflection=on", listen="0.0.0.0:0"
    ) as served:
        port = served.target.rpartition(":")[2]
        with Operator(f"127.0.0.1:{port}") as operator:
            assert operator.status().model
        with pytest.raises(PermissionDenied) as caught, Operator(f"{address}:{port}") as operator:
            operator.status()
        with grpc.insecure_channel(f"{address}:{port}") as channel:
            assert "colibri.v1.Generation" in ProtoReflectionDescriptorDatabase(channel).get_services()
    assert f"`{caught.value.message}`" in PAGE.read_text()


def test_strangers_leave_no_line_for_each_handshake(deployment: tuple[Serving, Path, Path]) -> None:
    served, _, _ = deployment
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", int(served.target.rpartition(":")[2])), 5) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(OSError):
                stranger.recv(100)
    assert "Handshake failed" not in served.err.read_text()
