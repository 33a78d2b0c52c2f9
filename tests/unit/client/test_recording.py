"""Records: a line holds all that is needed to ask again, and every difference is found and named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from colibri.client.answer import Answer
from colibri.client.messages import to_request
from colibri.client.recording import Record, append, differences, read
from colibri.errors import InvalidInput
from colibri.generation import Finished, FinishReason, Usage


def answer(choice: int = 0, reason: FinishReason = FinishReason.LENGTH, stop: str | None = None) -> Answer:
    finished = Finished(reason, None, Usage(1, 2), 8, 77, "engine", choice, stop)
    return Answer(choice, "h\u00e9\n", [3, 4], [7, 2**64 - 1], [], finished)


def record(answers: list[Answer]) -> Record:
    made = Record.of(to_request("a\u00e9b", top_p=0.5, request_id="me"), answers, "hash")
    assert made is not None
    return made


def test_a_file_of_records(tmp_path: Path) -> None:
    first = record([answer()])
    second = record([answer(), answer(1, FinishReason.STOP, "END")])
    append(tmp_path / "r", first)
    append(tmp_path / "r", second)
    assert list(read(tmp_path / "r")) == [first, second]
    assert first.request.sampling.seed == 77, "the seed that was drawn"
    assert first.request.request_id == "", "the next asking is another request"
    assert (first.engine_numerics_id, first.model_hash) == ("engine", "hash")
    assert second.choices[1].stop == "END"


def test_only_whole_answers_are_recorded() -> None:
    request = to_request("a")
    assert Record.of(request, [], "hash") is None
    assert Record.of(request, [answer(), answer(1, FinishReason.ABORT)], "hash") is None
    assert Record.of(request, [Answer(0, "x", [1], [1])], "hash") is None


def test_the_same_has_no_differences() -> None:
    assert differences(record([answer(), answer(1)]), [answer(), answer(1)]) == []


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"ids": [3, 5]}, "choice 0, token 1: 5 ffffffffffffffff, recorded 4 ffffffffffffffff"),
        ({"receipts": [6, 1]}, "choice 0, token 0: 3 0000000000000006, recorded 3 0000000000000007"),
        ({"ids": [3], "receipts": [7]}, "choice 0, tokens: 1, recorded 2"),
        ({"text": "h"}, "choice 0, text: 'h', recorded 'h\u00e9\\n'"),
        (
            {"finished": answer(0, FinishReason.STOP, "X").finished},
            "choice 0, end: ('STOP', 'X'), recorded ('LENGTH', None)",
        ),
        ({"finished": None}, "choice 0: not answered"),
        ({"choice": 1}, "choice 0: not answered"),
    ],
)
def test_every_difference_is_told(change: dict[str, Any], told: str) -> None:
    assert differences(record([answer()]), [replace(answer(), **change)])[0] == told


def test_a_choice_too_many_is_told() -> None:
    assert differences(record([answer()]), [answer(), answer(1)]) == ["choice 1: not recorded"]


def broken(**changes: Any) -> bytes:
    document = json.loads(record([answer()]).line())
    for key, value in changes.items():
        if value is None:
            del document[key]
        else:
            document[key] = value
    return json.dumps(document).encode()


CHOICE = {"choice": 0, "ids": [1], "receipts": ["01"], "text": "", "reason": "STOP", "stop": None}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"{", "expected a JSON object"),
        (b"\xff", "expected a JSON object"),
        (b"[]", "expected a record with colibri_record: 1"),
        (broken(colibri_record=2), "expected a record with colibri_record: 1"),
        (broken(request={"text": "a", "beam_width": 4}), "beam_width"),
        (broken(request=None), "KeyError: 'request'"),
        (broken(model_hash=5), "model_hash is int, not str"),
        (broken(choices=[{**CHOICE, "receipts": []}]), "not whole numbers in parallel"),
        (broken(choices=[{**CHOICE, "receipts": ["xy"]}]), "ValueError"),
        (broken(choices=[{**CHOICE, "ids": ["1"]}]), "not whole numbers in parallel"),
        (broken(choices=[{**CHOICE, "reason": "BORED"}]), "BORED"),
        (broken(choices=[{**CHOICE, "stop": 1.5}]), "stop is neither"),
        (broken(choices=["x"]), "TypeError"),
    ],
)
def test_what_is_no_record_names_its_line(tmp_path: Path, line: bytes, expected: str) -> None:
    (tmp_path / "r").write_bytes(record([answer()]).line().encode() + b"\n" + line + b"\n")
    records = read(tmp_path / "r")
    next(records)
    with pytest.raises(InvalidInput, match=expected) as caught:
        next(records)
    assert caught.value.message.startswith(f"{tmp_path}/r:3: expected")
