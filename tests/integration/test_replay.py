"""`colibri generate --target`, `--record` and `colibri replay`: the same request, asked again anywhere."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import BACKEND, kill
from tests.support.serving import Serving, serving

COLIBRI = [sys.executable, "-m", "colibri.cli.main"]
#: With two stop strings that occur in no text, so that text is held back.
SAMPLED = (
    "--temperature=0.9",
    "--top-p=0.95",
    "--top-k=100",
    "--min-p=0.001",
    "--repetition-penalty=1.1",
    "--presence-penalty=0.2",
    "--frequency-penalty=0.1",
    "--stop=never",
    "--stop=to be found",
    "--min-tokens=2",
    "--max-tokens=16",
    "--ignore-eos",
)


@pytest.fixture(scope="module")
def served(tiny_mixtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tiny_mixtral, tmp_path_factory.mktemp("serve"), "--workers=2") as running:
        yield running


def colibri(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([*COLIBRI, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    return result


@pytest.fixture(scope="module")
def recorded(served: Serving, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three records from a server: text, ids, and several choices."""
    file = tmp_path_factory.mktemp("records") / "records.jsonl"
    common = (f"--target={served.target}", f"--record={file}", *SAMPLED)
    for prompt in ("--prompt=w1 w2 w3", "--prompt-ids=5,9,300"):
        colibri("generate", prompt, *common)
    colibri("generate", "--prompt=w4", "--n=3", "--seed=5", *common)
    return file


class TestTarget:
    def test_the_same_here_and_on_a_server(self, served: Serving, tiny_mixtral: Path) -> None:
        asked = ("--prompt=w1 w2", "--seed=7", "--logprobs=2", "--n=2", "--echo", "--json", *SAMPLED)
        there = json.loads(colibri("generate", f"--target={served.target}", *asked).stdout)
        here = json.loads(
            colibri("generate", str(tiny_mixtral), "--workers=0", f"--backend={BACKEND}", *asked).stdout
        )
        assert there.pop("workers") == ["w0", "w1"]
        assert here.pop("workers") == []
        assert {"connected", "first token", "answered"} <= set(there.pop("phases_s"))
        here.pop("phases_s")
        assert there == here
        assert [choice["usage"]["completion_tokens"] for choice in here["choices"]] == [16, 16]
        assert here["prompt"]["text"] == "w1 w2"
        assert all(len(each["top"]) == 2 for each in here["logprobs"])
        assert here["choices"][0]["ids"] != here["choices"][1]["ids"]

    def test_text_with_all_that_can_be_printed(self, served: Serving) -> None:
        result = colibri(
            "generate",
            f"--target={served.target}",
            "--prompt=w1 w2",
            "--echo",
            "--receipts",
            "--logprobs=1",
            "--max-tokens=3",
            "--ignore-eos",
            "--temperature=0",
        )
        lines = result.stdout.splitlines()
        assert lines[0].startswith("w1 w2")
        tokens = [line.split() for line in lines[-7:-1:2]]
        assert all(len(receipt) == 16 and float(logprob) <= 0 for receipt, logprob, *_ in tokens)
        assert lines[-1].startswith(f"{tokens[-1][0]}  the answer, on cpu/")
        assert "server " in result.stderr

    def test_stops(self, served: Serving) -> None:
        asked = ("--prompt=w1 w2", "--temperature=0", "--ignore-eos", "--max-tokens=12", "--json")
        free = json.loads(colibri("generate", f"--target={served.target}", *asked).stdout)
        stop = free["text"][3:6]
        by_text = json.loads(
            colibri("generate", f"--target={served.target}", f"--stop={stop}", *asked).stdout
        )
        assert (by_text["finish_reason"], by_text["stop"]) == ("stop", stop)
        assert by_text["text"] == free["text"][: free["text"].index(stop)]
        by_id = json.loads(
            colibri("generate", f"--target={served.target}", f"--stop-id={free['ids'][2]}", *asked).stdout
        )
        assert (by_id["finish_reason"], by_id["stop"]) == ("stop", free["ids"][2])

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (("--workers=3",), "--workers: expected no such option with --target"),
            (("--compute-mode=fp32",), "--compute-mode: expected no such option with --target"),
            (("--system=x",), "--system: expected --chat with it"),
            (("--max-tokens=100000",), "stopping.max_tokens: expected 1 to"),
            (("--stop=",), "stopping.stop"),
            (("--record=/nowhere/file", "--max-tokens=1"), "--record: expected a file that can be written"),
        ],
    )
    def test_what_has_no_meaning_is_an_error(
        self, served: Serving, options: tuple[str, ...], message: str
    ) -> None:
        result = colibri("generate", f"--target={served.target}", "--prompt=w1", *options, code=1)
        assert message in result.stderr

    def test_retry_within_is_for_servers(self, tiny_mixtral: Path) -> None:
        result = colibri("generate", str(tiny_mixtral), "--prompt=w1", "--retry-within=5", code=1)
        assert "--retry-within: expected --target" in result.stderr

    @pytest.mark.parametrize("where", [(), ("MODEL", "--target=127.0.0.1:1")])
    def test_one_place_and_one_only(self, where: tuple[str, ...]) -> None:
        colibri("generate", "--prompt=w1", *where, code=2)

    def test_a_server_that_is_not_there_is_told_at_once(self) -> None:
        result = colibri("generate", "--target=127.0.0.1:1", "--prompt=w1", code=1)
        assert "127.0.0.1:1: nobody listens there" in result.stderr


class TestReplay:
    def test_on_the_server(self, served: Serving, recorded: Path) -> None:
        result = colibri("replay", str(recorded), f"--target={served.target}", "--at-once=3")
        lines = [line.split() for line in result.stdout.splitlines()]
        assert [line[:3] for line in lines[:3]] == [
            ["1", "same", "16"],
            ["2", "same", "16"],
            ["3", "same", "48"],
        ]
        assert result.stdout.endswith("3 of 3 records as recorded\n")

    def test_in_one_process(self, recorded: Path, tiny_mixtral: Path) -> None:
        """What a server with two workers said, said by none."""
        result = colibri(
            "replay", str(recorded), str(tiny_mixtral), "--workers=0", f"--backend={BACKEND}", "--json"
        )
        document = json.loads(result.stdout)
        assert document["same"] == 3
        assert [record["differences"] for record in document["records"]] == [[], [], []]

    def test_another_mode_is_not_the_same(self, recorded: Path, tiny_mixtral: Path) -> None:
        result = colibri(
            "replay", str(recorded), str(tiny_mixtral), "--workers=0", "--compute-mode=fp32", code=1
        )
        assert result.stdout.count("numerics: cpu/fp32") == 3
        assert "recorded on cpu/bf16" in result.stdout
        assert result.stdout.endswith("0 of 3 records as recorded\n")

    def test_a_changed_record_is_found(self, served: Serving, recorded: Path, tmp_path: Path) -> None:
        lines = [json.loads(line) for line in recorded.read_text().splitlines()]
        good = lines[0]["choices"][0]["receipts"][3]
        lines[0]["choices"][0]["receipts"][3] = "0" * 16
        lines[1]["request"]["sampling"]["top_p"] = 0.5
        changed = tmp_path / "changed"
        changed.write_text("\n".join(json.dumps(line) for line in lines))
        result = colibri("replay", str(changed), f"--target={served.target}", code=1)
        assert f"choice 0, token 3: {lines[0]['choices'][0]['ids'][3]} {good}, recorded" in result.stdout
        assert [line.split()[1] for line in result.stdout.splitlines() if "tokens" in line] == [
            "DIFFERS",
            "DIFFERS",
            "same",
        ]

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "FILE: expected a file that can be read"),
            ("", "FILE: expected at least one record"),
            ('{"colibri_record": 1}\n', ":1: expected a record as `--record` writes it"),
        ],
    )
    def test_what_is_no_file_of_records(self, tmp_path: Path, content: str | None, message: str) -> None:
        file = tmp_path / "r"
        if content is not None:
            file.write_text(content)
        result = colibri("replay", str(file), "--target=127.0.0.1:1", code=1)
        assert message in result.stderr


def test_a_server_killed_in_the_middle_is_waited_for(tiny_mixtral: Path, tmp_path: Path) -> None:
    """The command line's own answer goes on, and its receipts are those of an undisturbed one."""
    listen = f"unix:{tmp_path}/s"
    asked = (
        "generate",
        f"--target={listen}",
        "--prompt=w1 w2",
        "--ignore-eos",
        "--seed=3",
        "--temperature=0.8",
    )
    with serving(tiny_mixtral, tmp_path, listen=listen) as running:
        whole = colibri(*asked, "--max-tokens=300", "--receipts").stdout
        process: subprocess.Popen[Any] = subprocess.Popen(
            [*COLIBRI, *asked, "--max-tokens=300", "--receipts"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,  # nothing of its text may stay in a buffer that communicate does not know
        )
        assert process.stdout is not None
        head = process.stdout.read(8)
        kill(running.process.pid)
        running.process.wait(10)
    with serving(tiny_mixtral, tmp_path, listen=listen):
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    # As subprocess translates them: random text has carriage returns.
    assert (head + out).decode().replace("\r\n", "\n").replace("\r", "\n") == whole
    assert b"asking again" in err
