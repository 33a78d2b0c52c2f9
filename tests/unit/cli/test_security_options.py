"""Options of security: each changes what is asked for or shown, or is refused where it means nothing."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from colibri.cli.cluster_options import cluster_options
from colibri.cli.parser import Parser
from colibri.cli.security_options import (
    channel_security,
    check_called,
    demanded_secret,
    launched_secret,
    plane_security,
    server_security,
    worker_secret,
    worker_tls,
)
from colibri.cli.verbs import build_parser
from colibri.errors import ConfigError
from colibri.security.channel import ChannelSecurity
from colibri.security.plane_secret import PlaneSecret
from colibri.security.server import ServerSecurity
from tests.support.pki import Pki


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.make(tmp_path_factory.mktemp("pki") / "certs")


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")


def parsed(verb: str, *argv: str) -> argparse.Namespace:
    parser = build_parser().verbs[verb]
    assert isinstance(parser, Parser)
    return parser.fill().parse_args(["--config=none", *argv])


def test_a_server() -> None:
    args = parsed(
        "serve",
        "m",
        "--tls-cert=c",
        "--tls-key=k",
        "--client-ca=a",
        "--tokens=t",
        "--insecure",
        "--reflection=off",
    )
    assert server_security(args) == ServerSecurity(Path("c"), Path("k"), Path("a"), Path("t"), True, False)
    assert server_security(parsed("serve", "m")) == ServerSecurity()


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--tls-cert=c"], "--tls-key: expected a file, with --tls-cert, got none"),
        (["--tls-key=k"], "--tls-cert: expected a file, with --tls-key, got none"),
        (["--client-ca=a"], "--tls-cert: expected a file, with --client-ca, got none"),
    ],
)
def test_halves_of_a_server(argv: list[str], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        server_security(parsed("serve", "m", *argv))
    assert caught.value.message == text


def test_the_workers_plane(pki: Pki) -> None:
    argv = (
        f"--worker-ca={pki.ca}",
        f"--tls-cert={pki.cert('coordinator')}",
        f"--tls-key={pki.key('coordinator')}",
        "--worker-tls-cert=/w.pem",
        "--worker-tls-key=/w.key",
        "--worker-tls-name=worker.colibri.internal",
    )
    tls = worker_tls(parsed("serve", "m", *argv))
    channel = ChannelSecurity(
        tls_ca=pki.ca,
        tls_cert=pki.cert("coordinator"),
        tls_key=pki.key("coordinator"),
        tls_name="worker.colibri.internal",
    )
    assert tls is not None
    assert (tls.certificate, tls.key, tls.client_ca, tls.channel) == (
        Path("/w.pem"),
        Path("/w.key"),
        pki.ca,
        channel,
    )
    assert cluster_options(parsed("serve", "m", *argv)).tls == tls
    assert worker_tls(parsed("serve", "m")) is None
    router = parsed("router", "m", "--expert=h:1", *argv[:3], argv[5])
    assert plane_security(router) == channel


def test_a_secret(tmp_path: Path) -> None:
    kept = f"--worker-secret-file={tmp_path / 'secret'}"
    made = launched_secret(parsed("serve", "m", kept))
    assert made is not None
    assert cluster_options(parsed("serve", "m", kept)).secret == made
    assert cluster_options(parsed("serve", "m")).secret is None  # a new one is drawn
    assert worker_secret(parsed("router", "m", "--expert=h:1", kept)) == made
    assert worker_secret(parsed("chaos", "plan", kept)) == made
    assert demanded_secret(parsed("expert", "m", kept)) == made
    handed = made.hand_over()
    assert demanded_secret(parsed("expert", "m", f"--worker-secret-fd={handed}")) == made
    assert demanded_secret(parsed("expert", "m")) is None


def test_a_secret_that_cannot_be(pki: Pki, tmp_path: Path) -> None:
    kept = f"--worker-secret-file={tmp_path / 'secret'}"
    absent = f"--worker-secret-file: expected a file that can be read, got {tmp_path / 'secret'}"
    for verb in (["router", "m", "--expert=h:1"], ["expert", "m"]):  # they make none
        read = worker_secret if verb[0] == "router" else demanded_secret
        with pytest.raises(ConfigError) as caught:
            read(parsed(*verb, kept))
        assert caught.value.message.startswith(absent)
    (tmp_path / "secret").write_text(PlaneSecret.draw().text)
    for argv, text in (
        (
            ["expert", "m", kept, "--worker-secret-fd=5"],
            "--worker-secret-file: expected none beside --worker-secret-fd",
        ),
        (
            ["serve", "m", kept, f"--worker-ca={pki.ca}"],
            "--worker-secret-file: expected none beside --worker-ca, by which callers are known",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            (demanded_secret if argv[0] == "expert" else plane_security)(parsed(*argv))
        assert caught.value.message.startswith(text)


def test_a_plane_that_cannot_be(pki: Pki) -> None:
    own = (f"--tls-cert={pki.cert('coordinator')}", f"--tls-key={pki.key('coordinator')}")
    ca = f"--worker-ca={pki.ca}"
    for argv, text in (
        (["--worker-tls-name=n"], "--worker-ca: expected a file, with --worker-tls-name, got none"),
        ([ca], "--tls-cert: expected what workers are shown, with --worker-ca, got none"),
        ([ca, *own], "--worker-tls-cert: expected what workers serve with, with --worker-ca, got none"),
        (
            ["--worker-ca=/no", *own],
            "--worker-ca: expected a file that can be read, got /no (No such file or directory)",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            worker_tls(parsed("serve", "m", *argv))
        assert caught.value.message == text


@pytest.mark.parametrize("verb", ["status", "scale", "drain", "move", "generate", "chat", "replay"])
def test_what_a_caller_shows(verb: str) -> None:
    first = {
        "scale": ["3"],
        "drain": ["w0"],
        "move": ["0:1", "--to=w0"],
        "replay": ["f"],
        "generate": ["--prompt=x"],
    }
    args = parsed(
        verb,
        *first.get(verb, []),
        "--target=h:1",
        "--tls-ca=a",
        "--tls-cert=c",
        "--tls-key=k",
        "--tls-name=n",
        "--token-file=t",
        "--insecure",
    )
    assert channel_security(args) == ChannelSecurity(
        Path("a"), Path("c"), Path("k"), "n", Path("t"), None, True
    )


def test_bench_serve_and_chaos_show_it_too() -> None:
    bench = build_parser().verbs["bench"].fill().verbs["serve"].fill()
    args = bench.parse_args(["--config=none", "--users=1", "--tls-ca=a", "--token-file=t"])
    assert channel_security(args) == ChannelSecurity(tls_ca=Path("a"), token_file=Path("t"))
    args = parsed("chaos", "plan", "--target=h:1", "--tls-ca=a")
    assert channel_security(args) == ChannelSecurity(tls_ca=Path("a"))
    with pytest.raises(ConfigError, match="--tls-ca: expected --target, which it is for"):
        check_called(parsed("chaos", "plan", "--tls-ca=a"))


def test_environment_and_file_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLIBRI_TOKEN_FILE", "/from/environment")
    file = tmp_path / "colibri.yaml"
    file.write_text("tls-ca: /from/file\nserve:\n  tokens: /accepted\n")
    parser = build_parser().verbs["status"].fill()
    args = parser.parse_args([f"--config={file}"])
    assert channel_security(args) == ChannelSecurity(
        tls_ca=Path("/from/file"), token_file=Path("/from/environment")
    )
