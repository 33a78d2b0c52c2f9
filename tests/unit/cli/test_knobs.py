"""No option is accepted and then read by nobody."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import pytest

import colibri.cli
from colibri.cli import options
from colibri.cli.cluster_options import cluster_options
from colibri.cli.parser import Parser, leaves
from colibri.cli.verbs import build_parser

SOURCES = "\n".join(path.read_text() for path in Path(colibri.cli.__file__).parent.rglob("*.py"))


def test_every_option_is_read_somewhere() -> None:
    for path, parser in leaves(build_parser()):
        for action in parser._actions:
            if action.dest in ("help", "config"):
                continue
            read = re.search(rf"\bargs\.{action.dest}\b|[\"']{action.dest}[\"']", SOURCES)
            assert read, f"colibri {' '.join(path)}: nobody reads {action.option_strings or action.dest}"


#: Of `serve`, but not of the deployment.
OF_THE_SERVER = ("help", "model", "config", "listen", "grace", "json", "router_max_rows", "parent_pid")
#: Refused without it: test_cluster_options.py.
WITH_RAY = ("ray_address", "spread", "place_timeout", "worker_lease")
#: Refused without a GPU: test_devices.py.
WITH_GPU = ("gpu_block_size", "dma_buffer_size", "int4_on", "experts_on")
#: Of both, read together: tests/unit/cli/test_security_options.py.
SECURITY = (
    "tls_cert",
    "tls_key",
    "client_ca",
    "tokens",
    "reflection",
    "worker_ca",
    "worker_tls_cert",
    "worker_tls_key",
    "worker_tls_name",
    "worker_secret_file",
)


def serve_parser() -> Parser:
    return build_parser().verbs["serve"].fill()


def another(action: argparse.Action) -> list[str]:
    """Arguments that give the option a value which is not its default."""
    option = action.option_strings[0]
    if action.nargs == 0:
        return [option]
    if action.choices is not None:
        return [option, str([choice for choice in action.choices if choice != action.default][-1])]
    if action.metavar == "W=BACKEND":
        return [option, "w0=reference"]
    if action.metavar == "W=NAME,ADDR":
        return [option, "w0=n,10.0.0.1"]
    for text in ("3", "5", "64", "0.5", "65536", "cuda", "cuda/simt"):
        try:
            value = action.type(text) if callable(action.type) else text
        except (argparse.ArgumentTypeError, ValueError):
            continue
        if value != action.default:
            return [option, text]
    raise AssertionError(f"no value for {option}")


@pytest.mark.parametrize(
    "action",
    [action for action in serve_parser()._actions if action.dest not in (*OF_THE_SERVER, *SECURITY)],
    ids=lambda action: action.dest,
)
def test_every_option_of_serve_changes_the_deployment(
    action: argparse.Action, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLIBRI_HOME", str(tmp_path))  # where what is kept between servers lies
    monkeypatch.setattr(
        "colibri.cluster.machine.netns.check_network_place", lambda place, field: None
    )  # root

    def made(*argv: str) -> Any:
        args = serve_parser().parse_args(["m", *argv])
        return options.deployment_options(args, args.model), cluster_options(args)

    usual = ["--workers", "4"] if action.dest != "workers" else []
    usual += ["--launcher", "ray"] if action.dest in WITH_RAY else []
    usual += ["--device", "cuda"] if action.dest in WITH_GPU else []
    assert made(*usual, *another(action)) != made(*usual)


def test_a_step_has_room_for_a_whole_chunk_and_every_answer() -> None:
    args = serve_parser().parse_args(["m", "--prefill-chunk=2000", "--max-running=300"])
    engine = options.deployment_options(args, args.model).engine
    assert (engine.prefill_chunk, engine.max_batch_rows) == (2000, 2300)
