"""Compare answers with those of an engine without workers, token by token: ids and receipts.

A receipt binds a token to its raw logits and to every token before it, so equal receipts mean equal computation.
Expected answers are kept in a file, one JSON object per line, keyed by everything that decides them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from colibri.bench.load.record import RequestRecord
from colibri.bench.load.workload import LoadRequest
from colibri.errors import ConfigError
from colibri.whole_write import append_whole

_MAX_CACHE_BYTES = 1 << 30
_REVISION = 1


@dataclass(frozen=True, slots=True)
class Judge:
    """What the compared answers were computed with. eos_ids: matter only if a request heeds them."""

    model_hash: str
    engine_numerics_id: str
    eos_ids: tuple[int, ...]

    def key(self, request: LoadRequest) -> str:
        """Returns the name of the answer to `request`: SHA-256 over all that decides its bits and its length."""
        sampling = request.sampling
        decides = [
            _REVISION,
            self.model_hash,
            self.engine_numerics_id,
            request.prompt_ids,
            request.max_tokens,
            # What a greedy choice does not look at must not make a new answer of it.
            [sampling.temperature, sampling.top_p, sampling.top_k, request.seed]
            if sampling.temperature
            else "greedy",
            None if request.ignore_eos else sorted(self.eos_ids),
        ]
        return hashlib.sha256(json.dumps(decides).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    ids: tuple[int, ...]
    receipts: tuple[int, ...]
    finish_reason: str

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.receipts):
            raise ConfigError("expected answer", f"{len(self.ids)} receipts", len(self.receipts))


@dataclass(frozen=True, slots=True)
class Wrong:
    """An answer that differs from the expected one.

    token: the first that differs, or where it ends too early or too late; None: something else differs.
    """

    request: int
    token: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class OracleReport:
    """answers: whole answers compared. partial: answers of failed requests, compared as far as they came. tokens:
    compared in both.
    """

    answers: int
    partial: int
    tokens: int
    wrong: tuple[Wrong, ...]

    @property
    def held(self) -> bool:
        return not self.wrong


class Oracle:
    """Expected answers by key."""

    def __init__(self, judge: Judge, answers: Mapping[str, ExpectedAnswer]) -> None:
        self._judge = judge
        self._answers = dict(answers)

    def missing(self, requests: Iterable[LoadRequest]) -> list[LoadRequest]:
        """Returns the requests without an expected answer, each once."""
        found = {self._judge.key(request): request for request in requests}
        return [request for key, request in found.items() if key not in self._answers]

    def add(self, request: LoadRequest, answer: ExpectedAnswer) -> str:
        """Returns the answer's key."""
        key = self._judge.key(request)
        self._answers[key] = answer
        return key

    def judge(self, record: RequestRecord) -> Wrong | None:
        """Returns the first difference, or None if every token that came is as expected and a whole answer is whole."""
        expected = self._answers.get(self._judge.key(record.request))
        if expected is None:
            return Wrong(record.index, None, "no expected answer is known")
        if len(record.ids) != len(record.token_times) or len(record.receipts) != len(record.ids):
            return Wrong(record.index, None, "the target sends no receipts")
        for at, (token, receipt) in enumerate(zip(record.ids, record.receipts, strict=True)):
            if at == len(expected.ids):
                return Wrong(record.index, at, f"expected {at} tokens, got {len(record.ids)}")
            if token != expected.ids[at]:
                return Wrong(record.index, at, f"expected token {expected.ids[at]}, got {token}")
            if receipt != expected.receipts[at]:
                text = f"expected receipt {expected.receipts[at]:016x}, got {receipt:016x}"
                return Wrong(record.index, at, text)
        if not record.completed:
            return None
        if len(record.ids) != len(expected.ids):
            text = f"expected {len(expected.ids)} tokens, got {len(record.ids)}"
            return Wrong(record.index, len(record.ids), text)
        if record.finish_reason != expected.finish_reason:
            text = f"expected finish reason {expected.finish_reason}, got {record.finish_reason}"
            return Wrong(record.index, None, text)
        return None

    def judge_all(self, records: Iterable[RequestRecord]) -> OracleReport:
        """Judges all records. Failed requests without a token are not counted: there is nothing to compare."""
        judged = [record for record in records if record.completed or record.ids]
        verdicts = [self.judge(record) for record in judged]
        return OracleReport(
            answers=sum(record.completed for record in judged),
            partial=sum(not record.completed for record in judged),
            tokens=sum(len(record.ids) for record in judged),
            wrong=tuple(verdict for verdict in verdicts if verdict is not None),
        )


@dataclass(frozen=True, slots=True)
class AnswerFile:
    """Expected answers on disk. Lines are only ever added; one that cannot be read is computed anew."""

    path: Path
    unreadable: list[int] = field(default_factory=list)

    def read(self) -> dict[str, ExpectedAnswer]:
        """Empty when the file does not exist. `unreadable`: numbers of lines that were passed over."""
        self.unreadable.clear()
        if not self.path.exists():
            return {}
        if self.path.stat().st_size > _MAX_CACHE_BYTES:
            raise ConfigError(str(self.path), f"at most {_MAX_CACHE_BYTES} bytes", self.path.stat().st_size)
        answers = {}
        with self.path.open(encoding="utf-8", errors="replace") as lines:
            for number, line in enumerate(lines, 1):
                if line.isspace():
                    continue
                try:
                    document = json.loads(line)
                    answers[str(document["key"])] = decode_answer(document)
                except (ValueError, KeyError, TypeError, ConfigError):
                    self.unreadable.append(number)
        return answers

    def append(self, items: Sequence[tuple[str, ExpectedAnswer]]) -> None:
        """In one write, so that lines of two writers do not mix."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = "".join(json.dumps({"key": key, **encode_answer(answer)}) + "\n" for key, answer in items)
        # A line that was cut off by the end of its writer must not swallow the next one.
        append_whole(self.path, b"\n" + lines.encode() if _has_bytes(self.path) else lines.encode())


def _has_bytes(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def encode_answer(answer: ExpectedAnswer) -> dict[str, object]:
    """As JSON: receipts in hexadecimal, since they exceed a double's 53 bits."""
    receipts = [f"{receipt:016x}" for receipt in answer.receipts]
    return {"ids": list(answer.ids), "receipts": receipts, "finish_reason": answer.finish_reason}


def decode_answer(document: Mapping[str, object]) -> ExpectedAnswer:
    """Raises KeyError, TypeError, ValueError or ConfigError for anything else than `encode_answer` makes."""
    ids, receipts, reason = document["ids"], document["receipts"], document["finish_reason"]
    if not isinstance(ids, list) or not isinstance(receipts, list) or not isinstance(reason, str):
        raise TypeError("ids and receipts must be lists, finish_reason a string")
    if not all(type(token) is int for token in ids):
        raise TypeError("ids must be whole numbers")
    return ExpectedAnswer(tuple(ids), tuple(int(receipt, 16) for receipt in receipts), reason)
