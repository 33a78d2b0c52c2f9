"""Keep answers in a file, one JSON object per line, so that they can be asked for again and compared.

A record holds the request as it was sent (with the seed that was drawn), what computed it, and for each choice the
ids, the receipts (16 hex digits each), the text and why it ended.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from colibri.client.answer import Answer
from colibri.errors import InvalidInput
from colibri.generation import Finished, FinishReason
from colibri.v1 import generation_pb2 as pb
from colibri.whole_write import append_whole

FORMAT = 1
#: Longest line that is read: some million tokens.
_MAX_LINE = 64 << 20
_KIND = "colibri_record"


@dataclass(frozen=True, slots=True)
class RecordedChoice:
    """One recorded choice. reason: name of a FinishReason; stop: the id or string that ended it."""

    choice: int
    ids: tuple[int, ...]
    receipts: tuple[int, ...]
    text: str
    reason: str
    stop: int | str | None

    @classmethod
    def of(cls, answer: Answer, finished: Finished) -> RecordedChoice:
        return cls(
            answer.choice,
            tuple(answer.ids),
            tuple(answer.receipts),
            answer.text,
            finished.reason.name,
            finished.stop_id if finished.stop_string is None else finished.stop_string,
        )


@dataclass(frozen=True, slots=True)
class Record:
    """A recorded request and its answers.

    engine_numerics_id, model_hash: of what computed the answers. Compare receipts only if both are equal.
    """

    request: pb.GenerateRequest
    engine_numerics_id: str
    model_hash: str
    choices: tuple[RecordedChoice, ...]

    @classmethod
    def of(cls, request: pb.GenerateRequest, answers: Sequence[Answer], model_hash: str) -> Record | None:
        """Makes a record. Returns None if an answer did not end by itself: it could not be asked for again."""
        kept = pb.GenerateRequest()
        kept.CopyFrom(request)
        kept.request_id = ""
        choices = []
        numerics = ""
        for answer in answers:
            finished = answer.finished
            if finished is None or finished.reason is FinishReason.ABORT:
                return None
            kept.sampling.seed, numerics = finished.seed, finished.engine_numerics_id
            choices.append(RecordedChoice.of(answer, finished))
        return cls(kept, numerics, model_hash, tuple(choices)) if choices else None

    def line(self) -> str:
        choices = [
            {**asdict(choice), "receipts": [f"{receipt:016x}" for receipt in choice.receipts]}
            for choice in self.choices
        ]
        document = {
            _KIND: FORMAT,
            "request": MessageToDict(self.request, preserving_proto_field_name=True),
            "engine_numerics_id": self.engine_numerics_id,
            "model_hash": self.model_hash,
            "choices": choices,
        }
        return json.dumps(document, ensure_ascii=False) + "\n"


def append(path: Path, record: Record) -> None:
    """Adds one line, whole or not at all. Raises OSError, which names the file."""
    append_whole(path, record.line().encode("utf-8"))


def read(path: Path) -> Iterator[Record]:
    """Yields the records of a file, one at a time. Raises InvalidInput, naming the line, and OSError."""
    with path.open("rb") as file:
        number = 0
        while line := file.readline(_MAX_LINE + 1):
            number += 1
            where = f"{path}:{number}"
            if len(line) > _MAX_LINE:
                raise InvalidInput(where, f"a line of at most {_MAX_LINE} bytes", "more")
            if line.strip():
                yield _parse(line, where)


def differences(record: Record, answers: Sequence[Answer]) -> list[str]:
    """Says in words what differs from the record; empty if every id, receipt, text and end is equal."""
    found = []
    recorded = {choice.choice: choice for choice in record.choices}
    now = {answer.choice: answer for answer in answers}
    for number in sorted(recorded.keys() | now.keys()):
        before, answer = recorded.get(number), now.get(number)
        if before is None or answer is None or answer.finished is None:
            found.append(f"choice {number}: {'not recorded' if before is None else 'not answered'}")
            continue
        after = RecordedChoice.of(answer, answer.finished)
        difference = _first_token(before, after) or _difference(before, after)
        if difference:
            found.append(f"choice {number}, {difference}")
    return found


def _first_token(before: RecordedChoice, after: RecordedChoice) -> str:
    for at, (old, new) in enumerate(
        zip(
            zip(before.ids, before.receipts, strict=True),
            zip(after.ids, after.receipts, strict=True),
            strict=False,
        )
    ):
        if old != new:
            return f"token {at}: {new[0]} {new[1]:016x}, recorded {old[0]} {old[1]:016x}"
    return ""


def _difference(before: RecordedChoice, after: RecordedChoice) -> str:
    for what, old, new in (
        ("tokens", len(before.ids), len(after.ids)),
        ("text", before.text, after.text),
        ("end", (before.reason, before.stop), (after.reason, after.stop)),
    ):
        if old != new:
            return f"{what}: {new!r}, recorded {old!r}"
    return ""


def _parse(line: bytes, where: str) -> Record:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(where, "a JSON object", error) from error
    if not isinstance(document, dict) or document.get(_KIND) != FORMAT:
        raise InvalidInput(where, f"a record with {_KIND}: {FORMAT}", line[:80])
    try:
        request = ParseDict(_of(document, "request", dict), pb.GenerateRequest())
        choices = tuple(_choice(each) for each in _of(document, "choices", list))
        return Record(
            request, _of(document, "engine_numerics_id", str), _of(document, "model_hash", str), choices
        )
    except (ParseError, TypeError, ValueError, KeyError) as error:
        raise InvalidInput(
            where, "a record as `--record` writes it", f"{type(error).__name__}: {error}"
        ) from error


def _choice(document: dict[str, Any]) -> RecordedChoice:
    stop = document["stop"]
    if not (stop is None or type(stop) in (int, str)):
        raise TypeError("stop is neither an id nor a string")
    ids = [each for each in _of(document, "ids", list) if type(each) is int]
    receipts = [int(each, 16) for each in _of(document, "receipts", list)]
    if not len(ids) == len(document["ids"]) == len(receipts):
        raise ValueError("ids and receipts are not whole numbers in parallel")
    return RecordedChoice(
        _of(document, "choice", int),
        tuple(ids),
        tuple(receipts),
        _of(document, "text", str),
        FinishReason[_of(document, "reason", str)].name,
        stop,
    )


def _of(document: dict[str, Any], key: str, kind: type) -> Any:
    value = document[key]
    if type(value) is not kind:
        raise TypeError(f"{key} is {type(value).__name__}, not {kind.__name__}")
    return value
