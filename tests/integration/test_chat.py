"""`colibri chat` on a terminal, typed at: history, Ctrl-C that aborts on the server, and ways to leave."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from colibri.client import Client
from colibri.generation import Chat, ChatMessage
from colibri.models.random_mixtral import random_mixtral
from colibri.v1 import operator_pb2, operator_pb2_grpc
from tests.conftest import TINY
from tests.support.clusters import BACKEND, eventually
from tests.support.serving import Serving, serving
from tests.support.terminal import CTRL_C, CTRL_D, colibri_on_terminal

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
#: Long enough that nobody is too late to stop it.
LONG = ("--ignore-eos", "--max-tokens=8000", "--temperature=0")
SHORT = ("--ignore-eos", "--max-tokens=6", "--temperature=0")


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template and room for long answers."""
    folder = random_mixtral(tmp_path_factory.mktemp("chatty") / "m", replace(TINY, max_positions=16384))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def served(chatty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(chatty, tmp_path_factory.mktemp("serve"), "--workers=0") as running:
        yield running


def engine(served: Serving) -> Any:
    with grpc.insecure_channel(served.target) as channel:
        stub = operator_pb2_grpc.OperatorStub(channel)
        return stub.ClusterStatus(operator_pb2.ClusterStatusRequest(), timeout=10).engine


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_conversation(served: Serving, tmp_path: Path) -> None:
    """Every message takes the whole conversation along; /reset forgets it, but not the system message."""
    kept = tmp_path / "kept"
    with colibri_on_terminal(
        "chat", f"--target={served.target}", "--system=be w1", f"--record={kept}", *SHORT
    ) as terminal:
        said = []
        for line in ("w1 w2", "w3", "/reset", "w4"):
            terminal.wait_for("> ")
            terminal.type(f"{line}\n")
            terminal.wait_for(f"{line}\n")
            if line != "/reset":
                said.append(terminal.wait_for(" [longest answer]\n"))
        terminal.wait_for("> ")
        terminal.type("/exit\n")
        assert terminal.end() == 0
    asked = [
        [(m["role"], m["content"]) for m in record["request"]["chat"]["messages"]] for record in records(kept)
    ]
    system = ("system", "be w1")
    texts = [record["choices"][0]["text"] for record in records(kept)]
    assert asked == [
        [system, ("user", "w1 w2")],
        [system, ("user", "w1 w2"), ("assistant", texts[0]), ("user", "w3")],
        [system, ("user", "w4")],
    ]
    assert [re.sub(r"\s", "", text) for text in said] == [re.sub(r"\s", "", text) for text in texts]
    # And the answers are those of any other client.
    with Client(served.target) as client:
        chat = Chat(tuple(ChatMessage(role, content) for role, content in asked[1]))
        again = client.generate(chat, max_tokens=6, temperature=0, ignore_eos=True).answer()
    assert [f"{receipt:016x}" for receipt in again.receipts] == records(kept)[1]["choices"][0]["receipts"]


def test_ctrl_c_aborts_on_the_server_and_stays(served: Serving, tmp_path: Path) -> None:
    before = engine(served).aborted
    with colibri_on_terminal("chat", f"--target={served.target}", *LONG) as terminal:
        terminal.wait_for("> ")
        terminal.type("w1 w2\n")
        terminal.wait_for("w1 w2\n")
        eventually(lambda: engine(served).running == 1, 30, "the answer runs")
        terminal.type(CTRL_C)
        terminal.wait_for(" [stopped]\n")
        eventually(lambda: engine(served).running == 0, 10, "the answer ends")
        assert engine(served).aborted == before + 1
        # It stays, and the next message is answered, and can be stopped as well.
        terminal.wait_for("> ")
        terminal.type("w3\n")
        terminal.wait_for("w3\n")
        eventually(lambda: engine(served).running == 1, 30, "the second answer runs")
        terminal.type(CTRL_C)
        terminal.wait_for(" [stopped]\n")
        assert engine(served).aborted == before + 2
        terminal.wait_for("> ")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "colibri chat: interrupted" in terminal.text


def test_a_server_that_hangs_holds_nobody(served: Serving) -> None:
    """The abort cannot get through: a second Ctrl-C leaves, and the answer ends when the server finds its client
    gone."""
    with colibri_on_terminal("chat", f"--target={served.target}", *LONG) as terminal:
        terminal.wait_for("> ")
        terminal.type("w1\n")
        eventually(lambda: engine(served).running == 1, 30, "the answer runs")
        served.process.send_signal(signal.SIGSTOP)
        try:
            begun = time.monotonic()
            terminal.type(CTRL_C)
            time.sleep(0.5)  # two signals at once are one
            terminal.type(CTRL_C)
            assert terminal.end(30) == 130
            assert time.monotonic() - begun < 40
        finally:
            served.process.send_signal(signal.SIGCONT)
    eventually(lambda: engine(served).running == 0, 30, "the answer ends")


def test_ctrl_c_ends_generate_and_its_answer(served: Serving) -> None:
    before = engine(served).aborted
    with colibri_on_terminal("generate", f"--target={served.target}", "--prompt=w1", *LONG) as terminal:
        eventually(lambda: engine(served).running == 1, 30, "the answer runs")
        terminal.type(CTRL_C)
        assert terminal.end() == 130
        assert "colibri generate: interrupted" in terminal.text
    eventually(lambda: engine(served).running == 0, 10, "the answer ends")
    assert engine(served).aborted == before + 1


def test_ctrl_c_without_an_answer_warns_first(served: Serving) -> None:
    with colibri_on_terminal("chat", f"--target={served.target}", *SHORT) as terminal:
        terminal.wait_for("> ")
        terminal.type(CTRL_C)
        terminal.wait_for("(Ctrl-C again, or Ctrl-D, leaves)")
        terminal.wait_for("> ")
        terminal.type("w1\n")
        terminal.wait_for(" [longest answer]\n")
        terminal.wait_for("> ")
        terminal.type(CTRL_C)
        terminal.wait_for("(Ctrl-C again, or Ctrl-D, leaves)")
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0


def test_with_a_model_of_its_own(chatty: Path) -> None:
    """No server: Ctrl-C goes to the whole process group, and neither workers nor the template's process mind."""
    with colibri_on_terminal("chat", str(chatty), f"--backend={BACKEND}", *LONG) as terminal:
        for text in ("w1", "w2"):
            terminal.wait_for("> ")
            terminal.type(f"{text}\n")
            terminal.wait_for(f"{text}\n")
            terminal.wait_for("w")  # of the answer: random words
            terminal.type(CTRL_C)
            terminal.wait_for(" [stopped]\n")
        terminal.wait_for("> ")
        terminal.type(CTRL_D)
        assert terminal.end() == 0
        assert "worker w1" in terminal.text


def test_an_answer_that_fails_takes_its_message_back(served: Serving, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    with colibri_on_terminal("chat", f"--target={served.target}", f"--record={kept}", *SHORT) as terminal:
        terminal.wait_for("> ")
        terminal.type("w1 " * 17000 + "\n")  # beyond the context
        terminal.wait_for("colibri chat: ")
        terminal.wait_for("> ")
        terminal.type("w2\n")
        terminal.wait_for(" [longest answer]\n")
        terminal.type("/exit\n")
        assert terminal.end() == 0
    (record,) = records(kept)
    assert record["request"]["chat"]["messages"] == [{"role": "user", "content": "w2"}]


def test_lines_of_a_pipe(served: Serving) -> None:
    """For scripts: no prompt, one answer a line of input."""
    command = [sys.executable, "-m", "colibri.cli.main", "chat", f"--target={served.target}", *SHORT]
    result = subprocess.run(
        command, input="w1\n\nw2\n", capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.count(" [longest answer]\n") == 2
    assert "> " not in result.stdout
    assert "server " in result.stderr


def test_without_a_template(tiny_mixtral: Path) -> None:
    command = [sys.executable, "-m", "colibri.cli.main", "chat", str(tiny_mixtral), "--workers=0"]
    result = subprocess.run(command, input="w1\n", capture_output=True, text=True, timeout=60, check=False)
    assert "this model has no chat template" in result.stderr
    assert "Traceback" not in result.stderr
