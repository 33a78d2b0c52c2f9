"""Judging answers: whole, partial, resumed, and wrong in each way."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest

from colibri.bench.load.oracle import AnswerFile, ExpectedAnswer, Judge, Oracle
from colibri.bench.load.record import Failure, RequestRecord
from colibri.bench.load.workload import SamplingSpec
from colibri.errors import ConfigError
from tests.support.load_records import load_request, record

JUDGE = Judge("model", "numerics", (2,))
REQUEST = load_request()
EXPECTED = ExpectedAnswer((5, 6, 7, 8), (50, 60, 70, 1 << 63), "length")
TIMES = (100.1, 100.2, 100.3, 100.4)


def oracle() -> Oracle:
    made = Oracle(JUDGE, {})
    other = load_request(prompt=(9,))
    assert made.missing([REQUEST, other, REQUEST]) == [REQUEST, other]
    made.add(REQUEST, EXPECTED)
    assert made.missing([REQUEST]) == []
    return made


def answered(
    ids: Sequence[int] = EXPECTED.ids,
    receipts: Sequence[int] = EXPECTED.receipts,
    failure: Failure | None = None,
    reason: str = "length",
) -> RequestRecord:
    times = TIMES[: len(ids)] if len(ids) <= 4 else (*TIMES, *[101.0] * (len(ids) - 4))
    return record(
        token_times=times, ids=ids, receipts=receipts, failure=failure, request=REQUEST, finish_reason=reason
    )


def test_a_right_answer() -> None:
    report = oracle().judge_all([answered()])
    assert report.held
    assert (report.answers, report.partial, report.tokens) == (1, 0, 4)


@pytest.mark.parametrize(
    ("wrong", "token", "reason"),
    [
        (answered(ids=(5, 6, 9, 8)), 2, "expected token 7, got 9"),
        (
            answered(receipts=(50, 61, 70, 1 << 63)),
            1,
            "expected receipt 000000000000003c, got 000000000000003d",
        ),
        (answered(ids=(5, 6, 7), receipts=(50, 60, 70)), 3, "expected 4 tokens, got 3"),
        (answered(ids=(), receipts=()), 0, "expected 4 tokens, got 0"),
        (answered(ids=(5, 6, 7, 8, 8), receipts=(50, 60, 70, 1 << 63, 1)), 4, "expected 4 tokens, got 5"),
        (answered(reason="stop"), None, "expected finish reason length, got stop"),
        (answered(receipts=()), None, "the target sends no receipts"),
    ],
)
def test_wrong_answers(wrong: RequestRecord, token: int | None, reason: str) -> None:
    report = oracle().judge_all([answered(), wrong])
    assert not report.held
    [verdict] = report.wrong
    assert (verdict.token, verdict.reason) == (token, reason)


def test_failed_answers_are_judged_as_far_as_they_go() -> None:
    lost = Failure("WorkerLost", "")
    right = answered(ids=(5, 6), receipts=(50, 60), failure=lost)
    wrong = answered(ids=(5, 7), receipts=(50, 60), failure=lost)
    silent = answered(ids=(), receipts=(), failure=lost)
    report = oracle().judge_all([right, wrong, silent])
    assert (report.answers, report.partial, report.tokens) == (0, 2, 4)
    assert [verdict.token for verdict in report.wrong] == [1]


def test_an_unknown_request_is_not_right() -> None:
    other = record(token_times=TIMES, request=load_request(prompt=(9,)))
    assert oracle().judge(other) is not None


def test_keys_name_everything_that_decides() -> None:
    sampled = dataclasses.replace(REQUEST, sampling=SamplingSpec(temperature=0.5))
    heeding = dataclasses.replace(REQUEST, ignore_eos=False)
    keys = [
        JUDGE.key(REQUEST),
        JUDGE.key(load_request(prompt=(1, 2, 4))),
        JUDGE.key(load_request(max_tokens=5)),
        JUDGE.key(sampled),
        JUDGE.key(dataclasses.replace(sampled, seed=10)),
        JUDGE.key(dataclasses.replace(sampled, sampling=SamplingSpec(temperature=0.5, top_k=3))),
        JUDGE.key(dataclasses.replace(sampled, sampling=SamplingSpec(temperature=0.5, top_p=0.9))),
        JUDGE.key(heeding),
        Judge("model", "numerics", (3,)).key(heeding),
        Judge("model2", "numerics", (2,)).key(REQUEST),
        Judge("model", "numerics2", (2,)).key(REQUEST),
    ]
    assert len(set(keys)) == len(keys)
    # What decides nothing is left out: the seed of a greedy answer, the number of a request, unheeded ids.
    assert JUDGE.key(load_request(variant=3, seed=11)) == JUDGE.key(REQUEST)
    assert Judge("model", "numerics", (3,)).key(REQUEST) == JUDGE.key(REQUEST)


def test_kept_on_disk(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path / "new" / "answers.jsonl")
    assert file.read() == {}
    file.append([("a", EXPECTED)])
    file.append([("b", ExpectedAnswer((), (), "stop"))])
    assert file.read() == {"a": EXPECTED, "b": ExpectedAnswer((), (), "stop")}
    assert file.unreadable == []


def test_damage_costs_one_line(tmp_path: Path) -> None:
    file = AnswerFile(tmp_path / "answers.jsonl")
    file.append([("a", EXPECTED), ("b", EXPECTED)])
    whole = file.path.read_bytes()
    file.path.write_bytes(whole[:-20])
    file.append([("c", EXPECTED)])
    assert set(file.read()) == {"a", "c"}
    assert file.unreadable == [2]


@pytest.mark.parametrize(
    "line",
    [
        '{"key": "a"}',
        '{"key": "a", "ids": [1], "receipts": [], "finish_reason": "stop"}',
        '{"key": "a", "ids": ["1"], "receipts": ["1"], "finish_reason": "stop"}',
        '{"key": "a", "ids": [1], "receipts": ["z"], "finish_reason": "stop"}',
        '{"key": "a", "ids": [1], "receipts": [1], "finish_reason": "stop"}',
        '{"key": "a", "ids": 1, "receipts": "1", "finish_reason": "stop"}',
        "[]",
        "\ufffd",
    ],
)
def test_nonsense_is_passed_over(tmp_path: Path, line: str) -> None:
    path = tmp_path / "answers.jsonl"
    path.write_text(line + "\n")
    file = AnswerFile(path)
    assert file.read() == {}
    assert file.unreadable == [1]


def test_counts_must_agree() -> None:
    with pytest.raises(ConfigError):
        ExpectedAnswer((1,), (), "stop")
