"""Every bad command line and configuration file of the table, and addresses and workers that are not what they must
be: one line on stderr, the right exit code, and whoever was there before lives on."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from colibri.errors import Code
from colibri.models.random_mixtral import random_mixtral
from tests.integration.bad_input.case import ANY, Refusal, invalid, said
from tests.integration.bad_input.commands import CASES, CommandCase
from tests.integration.bad_input.folders import PARAMS, good
from tests.integration.bad_input.refused import COLIBRI, by_command


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return good(tmp_path_factory.mktemp("good") / "model")


@contextlib.contextmanager
def expert(model: Path, listen: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A real worker and its address; it must live until the end."""
    process = subprocess.Popen(
        [*COLIBRI, "expert", str(model), "--json", f"--listen={listen}", *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())["target"]
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(10)
        if process.stdout is not None:
            process.stdout.close()


def test_every_case(model: Path, tmp_path: Path) -> None:
    def tried(case: CommandCase) -> tuple[str, str]:
        folder = tmp_path / case.id
        folder.mkdir()
        return case.id, case.tried(model, folder)

    with ThreadPoolExecutor(2) as pool:
        found = dict(pool.map(tried, CASES))
    assert len(found) == len(CASES)
    assert {id: problem for id, problem in found.items() if problem} == {}
    assert (tmp_path / "listen-file" / "file").read_bytes() == b"precious"


@pytest.mark.parametrize("verb", ["serve", "expert", "router"])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_taken_address(model: Path, tmp_path: Path, verb: str, kind: str) -> None:
    listen = "127.0.0.1:0" if kind == "tcp" else f"unix:{tmp_path}/w.sock"
    with expert(model, listen) as (_, target):
        taken = (
            ("an address that can be bound", f"{target} (Address already in use)")
            if kind == "tcp"
            else ("a socket that nobody serves", f"{tmp_path}/w.sock, where a server answers")
        )
        arguments = [verb, str(model), f"--listen={target}"]
        if verb == "router":
            arguments.append(f"--expert={target}")
        assert by_command(arguments, invalid("--listen", *taken), folders={}) == ""


def router_says(model: Path, target: str, refusal: Refusal, *options: str) -> str:
    arguments = ["router", str(model), f"--expert={target}", "--listen=127.0.0.1:0", *options]
    return by_command(arguments, refusal, folders={})


def test_another_models_worker(model: Path, tmp_path: Path) -> None:
    other = random_mixtral(tmp_path / "other", replace(PARAMS, seed=99))
    with expert(other, f"unix:{tmp_path}/w.sock", "--name=stranger") as (_, target):
        text = f"worker stranger: model_hash: expected {ANY}, got {ANY}: start it on the model that this router serves"
        assert router_says(model, target, said(Code.FAILED_PRECONDITION, text)) == ""


def test_a_worker_of_another_numerics_id(model: Path, tmp_path: Path) -> None:
    with expert(model, f"unix:{tmp_path}/w.sock", "--compute-mode=fp32") as (_, target):
        text = (
            f"worker w0: expert_numerics_id: expected {ANY}, got {ANY}: only with --mixed-numerics of the router "
            "do such workers serve together"
        )
        assert router_says(model, target, said(Code.FAILED_PRECONDITION, text)) == ""


def test_a_smaller_model_at_the_same_address(model: Path, tmp_path: Path) -> None:
    other = random_mixtral(tmp_path / "other", replace(PARAMS, experts=2))
    with expert(other, f"unix:{tmp_path}/w.sock") as (_, target):
        text = (
            f"worker w0: model_hash: expected {ANY}, got {ANY}: start it on the model that this router serves"
        )
        assert router_says(model, target, said(Code.FAILED_PRECONDITION, text)) == ""
