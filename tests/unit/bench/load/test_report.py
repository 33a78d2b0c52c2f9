"""What a report holds against, and the names it has for machines."""

from __future__ import annotations

import json

import pytest

from colibri.bench.load.metrics import measure
from colibri.bench.load.oracle import OracleReport, Wrong
from colibri.bench.load.record import Failure, RequestRecord
from colibri.bench.load.report import Report, record_document
from colibri.bench.load.slo import parse_slos
from colibri.bench.load.validity import judge_run
from tests.support.load_records import record, run_result

GOOD = [record(i, scheduled=100.0 + i, token_times=[100.2 + i, 100.3 + i]) for i in range(4)]
LOST = record(8, token_times=[100.1], failure=Failure("WorkerLost", "w0 is gone"))


def report(
    records: list[RequestRecord],
    slos: tuple[str, ...] = (),
    share: float = 1.0,
    oracle: OracleReport | None = None,
    loop_cpu_s: float = 0.1,
) -> Report:
    result = run_result(records, loop_cpu_s=loop_cpu_s)
    parsed = parse_slos(slos)
    return Report(measure(result, parsed), judge_run(result), parsed, share, oracle)


def test_a_run_that_held() -> None:
    oracle = OracleReport(answers=4, partial=0, tokens=8, wrong=())
    assert report(GOOD, ("ttft:201",), oracle=oracle).faults() == ()


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        (report([*GOOD, LOST]), "1 requests failed: 1 WorkerLost"),
        (report(GOOD, ("ttft:199",)), "SLOs: 0 of 4 requests met them (0.00%), 100.00% must"),
        (report(GOOD, loop_cpu_s=9.5), "invalid: the generator used 95% of a core"),
        (
            report(GOOD, oracle=OracleReport(4, 0, 8, (Wrong(3, 1, "expected token 5, got 6"),))),
            "oracle: 1 wrong answers; the first is request 3 at token 1: expected token 5, got 6",
        ),
        (report(GOOD, oracle=OracleReport(0, 0, 0, ())), "oracle: no token to judge"),
    ],
)
def test_what_does_not_hold(made: Report, fault: str) -> None:
    [found] = made.faults()
    assert found.startswith(fault)
    assert f"NOT HELD     {found}" in list(made.lines())
    assert made.document()["faults"] == [found]


def test_a_share_may_be_enough() -> None:
    slow = record(9, scheduled=105.0, token_times=[106.0])
    assert report([*GOOD, slow], ("ttft:500",), 0.8).faults() == ()
    assert len(report([*GOOD, slow], ("ttft:500",), 0.81).faults()) == 1


def test_the_names_of_vllm_bench_serve() -> None:
    document = report([*GOOD, LOST], ("ttft:500",)).document()
    json.dumps(document)
    wanted = {
        "duration", "num_prompts", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput",
        "max_output_tokens_per_s",
    }  # fmt: skip
    for name in ("ttft", "tpot", "itl", "e2el"):
        wanted |= {f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p50", "p90", "p99", "p99.9")}
    assert wanted <= set(document)
    assert document["mean_ttft_ms"] == pytest.approx(200.0)
    assert document["completed"] == 4
    assert document["failed"] == 1
    assert document["request_goodput"] == pytest.approx(0.4)
    assert document["errors_by_kind"] == {"WorkerLost": 1}
    assert document["error_messages"] == {"WorkerLost": "w0 is gone"}
    assert document["samples"] == {"ttft": 4, "tpot": 4, "itl": 4, "e2el": 4}
    assert document["largest_gap_ms"] == pytest.approx(100.0)


def test_the_table_tells_what_too_few_samples_mean() -> None:
    lines = list(report([*GOOD, LOST]).lines())
    assert lines[0] == "requests     4 whole, 1 failed"
    assert lines[1] == "             1 x WorkerLost: w0 is gone"
    [row] = [line for line in lines if line.startswith("time to first token")]
    assert row.split()[-1] == "200.0"
    assert row.count("*") == 3  # p90, p99 and p99.9 of four values
    assert any(line.startswith("* too few samples") for line in lines)


def test_a_record_as_json() -> None:
    document = record_document(LOST)
    assert json.loads(json.dumps(document)) == document
    assert document["token_times"] == pytest.approx([0.1])
    assert document["receipts"] == ["0000000000000000"]
    assert document["error"]["kind"] == "WorkerLost"
