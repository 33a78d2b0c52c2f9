"""Work that a client sizes holds nobody: while a text is encoded, other threads of the process run."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from colibri.coordinator.engine import EngineOptions
from colibri.errors import InvalidInput
from colibri.kernels.api import ComputeMode
from colibri.kernels.reference import ReferenceBackend
from colibri.models.plain_tokenizer import write_plain_tokenizer
from colibri.models.tokenizer import Tokenizer
from colibri.rpc.status import from_rpc_error
from colibri.rpc.turns import Waiter
from colibri.v1 import generation_pb2 as pb
from colibri.v1 import generation_pb2_grpc
from tests.support.served import Served, serve
from tests.support.tiny_engine import WAIT_S, TinyModel, make_tiny, wait_for
from tests.support.tries import Tries

MIB = 1 << 20
FOX = "the quick brown fox " * 52428
#: A share of the time that work took: whoever holds the interpreter holds it for nearly all of it.
HELD = 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found: Path = make_tiny(tmp_path_factory.mktemp("tiny") / "m")
    (found / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    return found


@pytest.fixture(scope="module")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    model = TinyModel.open(folder, ReferenceBackend(), ComputeMode.BF16)
    with serve(model, tmp_path_factory.mktemp("s"), EngineOptions(kv_tokens=4096)) as found:
        yield found
    model.tokenizer.close()


class Pulse:
    """A thread that does nothing but run: `longest` it was kept from it, seconds."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat)

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.wait(0.002):
            now = time.monotonic()
            self.longest = max(self.longest, now - last)
            last = now

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("text", [FOX, " " * MIB, "a" * MIB], ids=["words", "blanks", "one letter"])
def test_encoding_and_decoding_hold_nobody(tmp_path: Path, text: str, tries: Tries) -> None:
    write_plain_tokenizer(tmp_path, 300, 64)
    with contextlib.closing(Tokenizer.load(tmp_path)) as tokenizer:
        begun = time.monotonic()
        with Pulse() as pulse:
            ids = tokenizer.ids(text)
            decoded = tokenizer.decode(ids)
        took = time.monotonic() - begun
        assert len(ids) == len(text) + 1
        assert decoded == text
        assert pulse.longest < max(0.25, HELD * took)
        short, long = tokenizer.pids  # short texts have a process of their own
        priority = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, short, long)]
        assert priority == [priority[0], priority[0], min(priority[0] + 5, 19)]
    tries("large texts", 2)


def test_what_cannot_fit_is_refused_unread(served: Served, tries: Tries) -> None:
    client = served.client
    bytes_of_a_token = 5
    with pytest.raises(
        InvalidInput,
        match=rf"text: expected at most 511 tokens .* at most {511 * bytes_of_a_token} bytes, got 1048560 bytes",
    ):
        list(client.generate(FOX))
    with pytest.raises(InvalidInput, match="ids: expected at most 131072 ids, got 900000 ids"):
        client.detokenize([5] * 900_000)
    with pytest.raises(InvalidInput, match=r"text: expected what makes a reply of at most 4194304 bytes"):
        client.tokenize(" " * MIB)
    tries("large texts", 3)


def test_who_leaves_gives_up_the_turn(served: Served, tries: Tries) -> None:
    turns = served.generation._large
    with grpc.insecure_channel(served.target) as channel, turns.turn(Waiter("another")):
        stub = generation_pb2_grpc.GenerationStub(channel)
        calls = [stub.Tokenize.future(pb.TokenizeRequest(text="w1 " * 20_000)) for _ in range(3)]
        wait_for("all to wait for their turn", lambda: turns.waiting == len(calls))
        for call in calls:
            call.cancel()
        wait_for("none to wait any more", lambda: turns.waiting == 0)
    assert served.client.tokenize("w1 " * 20_000)
    tries("large texts", 3)


def test_elements_are_counted_before_they_are_made(served: Served, tries: Tries) -> None:
    with grpc.insecure_channel(served.target) as channel:
        stub = generation_pb2_grpc.GenerationStub(channel)
        for request, message in (
            (
                pb.GenerateRequest(chat=pb.Chat(messages=[pb.ChatMessage()] * 2_000_000)),
                "chat.messages: expected 1 to 16384 messages, got more than 16384 messages",
            ),
            (
                pb.GenerateRequest(stopping=pb.Stopping(stop=[""] * 2_000_000)),
                "stopping.stop: expected at most 16 strings, got more than 16 strings",
            ),
            (
                pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * 4_000_000)),
                "token_ids.ids: expected at most 511 tokens (the context holds 512), got 4000000 tokens",
            ),
        ):
            with pytest.raises(grpc.RpcError) as caught:
                list(stub.Generate(request, timeout=WAIT_S))
            assert from_rpc_error(caught.value, "server").message == message
    tries("messages of many elements", 3)


def test_the_bound_is_exact(tmp_path: Path) -> None:
    """A text of the longest tokens alone fits to the last one."""
    write_plain_tokenizer(tmp_path, 300, 64)
    path = tmp_path / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["added_tokens"].append(
        {**raw["added_tokens"][0], "id": 300, "content": "long token", "special": False, "normalized": False}
    )
    path.write_text(json.dumps(raw))
    with contextlib.closing(Tokenizer.load(tmp_path)) as tokenizer:
        assert tokenizer.bytes_per_token == len("long token")
        assert len(tokenizer.ids("long token" * 50, False, most=50)) == 50
        with pytest.raises(
            InvalidInput, match=r"at most 50 tokens .* which stand for at most 500 bytes, got 510"
        ):
            tokenizer.ids("long token" * 51, False, most=50)


@pytest.mark.parametrize("flag", ["lstrip", "rstrip"])
def test_no_bound_where_there_is_none(tmp_path: Path, flag: str) -> None:
    """A token that takes the blanks beside it stands for any number of them."""
    write_plain_tokenizer(tmp_path, 300, 64)
    path = tmp_path / "tokenizer.json"
    raw = json.loads(path.read_text())
    raw["added_tokens"][2][flag] = True
    path.write_text(json.dumps(raw))
    with contextlib.closing(Tokenizer.load(tmp_path)) as tokenizer:
        assert tokenizer.bytes_per_token is None
        blanks = " " * 5000
        text = blanks + "</s>" if flag == "lstrip" else "</s>" + blanks
        assert tokenizer.ids(text, False, most=1).tolist() == [2]


def inspected(folder: Path, source: str) -> list[str]:
    """What inspect warns of a chat template."""
    template = folder / "chat_template.jinja"
    before = template.read_text()
    template.write_text(source)
    try:
        told = subprocess.run(
            [sys.executable, "-m", "colibri.cli.main", "inspect", str(folder), "--json"],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    finally:
        template.write_text(before)
    return [warning for warning in json.loads(told.stdout)["warnings"] if "chat template" in warning]


def test_inspect_ends_whatever_the_template_does(folder: Path, tries: Tries) -> None:
    told = (
        "the chat template cannot be used: chat template: expected one that compiles within 2 s, got no end"
    )
    assert inspected(folder, "{{ 9 ** (9 ** 9) }}") == [told]
    tries("templates by inspect", 1)


def test_inspect_holds_none_of_the_templates_memory(folder: Path, tries: Tries) -> None:
    """It is compiled in another process, where Jinja folds what memory allows and leaves the rest to the rendering."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert len(inspected(folder, "{{ 'A' * 3000000000 }}")) <= 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10
    tries("templates by inspect", 1)
