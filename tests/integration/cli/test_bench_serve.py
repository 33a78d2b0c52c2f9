"""`colibri bench serve` against a real server with workers: exit codes, oracle, reports."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colibri.bench.expected import OracleSource, expected_answers
from colibri.bench.load.arrivals import ClosedLoop
from colibri.bench.load.lengths import Fixed
from colibri.bench.load.metrics import measure
from colibri.bench.load.oracle import Judge
from colibri.bench.load.prompts import RandomIds
from colibri.bench.load.result import RunLimits
from colibri.bench.load.runner import LoadRun
from colibri.bench.load.targets.colibri_grpc import GrpcTarget
from colibri.bench.load.workload import SamplingSpec, Workload, drawn
from colibri.cli.load_plan import read_load
from colibri.cli.main import main
from colibri.cli.verbs import build_parser
from colibri.client import Client
from tests.support.clusters import eventually
from tests.support.openai_server import openai_server
from tests.support.serving import Serving, serving

WAIT_S = 30.0
SHORT = ["--input-len=uniform:3:20", "--output-len=8", "--warmup=1"]
#: These cores are shared with the server and the tests' neighbours.
LAX = ["--max-lag=5000"]


@pytest.fixture(scope="module")
def server(tiny_mixtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with serving(tiny_mixtral, tmp_path_factory.mktemp("serve"), "--workers=2") as running:
        yield running


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["bench", "serve", *SHORT, *LAX, "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


def test_open_loop_with_an_oracle(
    server: Serving, tiny_mixtral: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "answers.jsonl"
    arguments = [
        f"--target={server.target}",
        "--rate=40",
        "--burstiness=0.5",
        "--requests=20",
        "--temperature=0.7",
        "--distinct=6",
        f"--oracle={tiny_mixtral}",
        f"--oracle-cache={cache}",
        "--goodput",
        "ttft:20000",
        "itl:20000",
    ]
    code, found = bench(capsys, *arguments)
    assert code == 0, found["faults"]
    assert found["oracle"] == {"answers": 20, "partial": 0, "tokens": 160, "wrong": [], "held": True}
    assert (found["completed"], found["failed"], found["total_output_tokens"]) == (20, 0, 160)
    assert found["request_goodput"] == found["request_throughput"] > 0
    assert found["samples"]["ttft"] == 20
    assert found["endpoint_type"] == "colibri"
    assert found["burstiness"] == 0.5
    for name in ("ttft", "tpot", "itl", "e2el"):
        for kind in ("mean", "median", "std", "p50", "p90", "p99", "p99.9"):
            assert found[f"{kind}_{name}_ms"] >= 0
    assert len(cache.read_text().split("\n")) >= 6

    # One bit of one expected receipt, and the answer is wrong: what is kept is what is compared.
    lines = cache.read_text().splitlines()
    answer = json.loads(lines[0])
    answer["receipts"][3] = f"{int(answer['receipts'][3], 16) ^ 1:016x}"
    cache.write_text("\n".join([json.dumps(answer), *lines[1:]]) + "\n")
    code, found = bench(capsys, *arguments)
    assert code == 1
    assert {wrong["token"] for wrong in found["oracle"]["wrong"]} == {3}
    assert len(found["oracle"]["wrong"]) in (3, 4)  # 20 requests, 6 distinct ones
    assert any("expected receipt" in fault for fault in found["faults"])


def test_closed_loop_for_a_time_is_judged_afterwards(
    server: Serving, tiny_mixtral: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = tmp_path / "records.jsonl"
    code, found = bench(
        capsys,
        f"--target={server.target}",
        "--users=2",
        "--duration=0.2",
        f"--oracle={tiny_mixtral}",
        f"--oracle-cache={tmp_path / 'answers.jsonl'}",
        f"--records={records}",
    )
    assert code == 0, found["faults"]
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    assert found["oracle"]["answers"] == found["completed"] == len(lines) > 0
    for line in lines:
        assert len(line["ids"]) == len(line["receipts"]) == len(line["token_times"]) == 8
        assert 0 <= line["sent"] <= line["token_times"][0] <= line["ended"]


def test_slos_decide(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"--target={server.target}"
    code, found = bench(capsys, target, "--users=1", "--requests=3", "--goodput", "ttft:0.001")
    assert code == 1
    assert found["good_share"] == 0.0
    assert found["faults"][0].startswith("SLOs: 0 of 3 requests met them")
    code, _ = bench(
        capsys, target, "--users=1", "--requests=3", "--goodput", "ttft:0.001", "--goodput-share=0"
    )
    assert code == 0


def test_a_trace(server: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    entries = [(5000, 4, 3), (5100, 9, 5), (5100, 2, 1)]
    trace.write_text(
        "".join(
            json.dumps({"timestamp": at, "input_length": prompt, "output_length": output}) + "\n"
            for at, prompt, output in entries
        )
    )
    assert main(["bench", "serve", *LAX, "--json", f"--target={server.target}", f"--trace={trace}",
                 "--trace-speed=2"]) == 0  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (15, 9)


def test_prompts_out_of_a_text(server: Serving, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text(
        "Vögel fliegen über das Meer. " * 20_000
    )  # more than is taken; the cut may split a letter
    args = build_parser().parse_args(
        ["bench", "serve", "--users=1", f"--target={server.target}", f"--text={text}", "--input-len=40"]
    )
    load = read_load(args)
    prompts = [load.workload.request(index).prompt_ids for index in range(5)]
    with contextlib.closing(Client(server.target)) as client:
        whole = client.detokenize(client.tokenize(text.read_text()[:2000], add_special=False).ids)
        for ids in prompts:
            assert len(ids) == 40
            # A window may begin and end inside a letter.
            assert client.detokenize(ids).strip("\ufffd") in whole


def test_texts_refused(server: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text"
    for raw, message in ((b"\xff\xfe", "UTF-8"), (b" \n", "some text"), (b"", "some text")):
        text.write_bytes(raw)
        assert main(["bench", "serve", "--users=1", f"--target={server.target}", f"--text={text}"]) == 2
        assert f"--text: expected {message}" in capsys.readouterr().err


def test_the_table(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["bench", "serve", *SHORT, *LAX, f"--target={server.target}", "--users=2", "--requests=4"]) == 0
    )
    text = capsys.readouterr().out
    assert "requests     4 whole, 0 failed" in text
    assert "time to first token (ttft)         4" in text
    assert "too few samples" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of the arguments --rate --users --trace is required"),
        (["--users=1", "--rate=2"], "not allowed with argument"),
        (["--users=1", "--goodput", "ttl:5"], "SLO: expected METRIC:MILLISECONDS"),
        (["--users=1", "--input-len=0"], "--input-len: expected"),
        (["--users=1", "--percentiles=x"], "--percentiles: expected"),
        (["--users=1", "--think=1", "--tokenizer=/x"], "--tokenizer: expected"),
        (["--rate=1", "--think=1"], "--think: expected"),
        (["--rate=0"], "rate: expected"),
        (["--trace=/none"], "/none: expected a readable"),
        (["--users=1", "--text=/none"], "--text: expected a readable file"),
        (["--users=1", "--burstiness=2"], "--burstiness: expected --rate beside it"),
        (["--users=1", "--goodput-share=1"], "--goodput-share: expected --goodput beside it"),
        (["--users=1", "--threads=1"], "--threads: expected --oracle beside it"),
        (["--users=1", "--openai-model=m"], "--openai-model: expected --openai beside it"),
        (["--trace=/none", "--input-len=4"], "--input-len: expected no --trace beside it"),
        (["--users=1", "--openai=http://127.0.0.1:9/v1"], "--openai: expected --tokenizer or --vocab"),
        (["--users=1", "--openai=http://127.0.0.1:9/v1", "--vocab=9", "--openai-form=chat"], "--tokenizer"),
        (["--users=1", "--openai=http://127.0.0.1:9/v1", "--vocab=9", "--resume"], "--resume"),
        (["--users=1", "--openai=http://127.0.0.1:9/v1", "--vocab=9", "--oracle=/m"], "--oracle"),
        (["--users=1", "--user=2"], "did you mean '--users'"),
    ],
)
def test_wrong_usage(
    server: Serving, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    target = [] if any("--openai=" in argument for argument in arguments) else [f"--target={server.target}"]
    try:
        code = main(["bench", "serve", *target, *arguments])
    except SystemExit as end:
        code = int(str(end.code))
    assert code == 2
    assert message in capsys.readouterr().err


def test_an_interrupted_run_reports_what_it_has(server: Serving, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt() -> None:
        eventually(lambda: any(t.name == "load" for t in threading.enumerate()), WAIT_S, "a run")
        time.sleep(1.5)  # it has connected
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    code, found = bench(capsys, f"--target={server.target}", "--users=2", "--duration=600", "--warmup=0")
    thread.join()
    assert code == 130
    assert found["duration"] < 60
    assert found["completed"] + found["unfinished"] == found["num_prompts"] > 0


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("hdrh.histogram", []), ("httpx", ["--openai=http://127.0.0.1:9/v1", "--vocab=9"])],
)
def test_a_missing_extra_is_named(
    module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["bench", "serve", "--users=1", *arguments]) == 1
    told = capsys.readouterr().err
    assert "the extra 'bench': " in told
    assert "-m pip install 'hdrhistogram>=0.10.3' 'httpx>=0.27'" in told


def test_another_model_is_no_oracle(
    server: Serving, tmp_path: Path, capsys: pytest.CaptureFixture[str], demo_like: Path
) -> None:
    code = main(
        ["bench", "serve", *SHORT, f"--target={server.target}", "--users=1", "--requests=1",
         f"--oracle={demo_like}", f"--oracle-cache={tmp_path / 'a'}"]
    )  # fmt: skip
    assert code == 1
    assert "--oracle: expected the model that is served" in capsys.readouterr().err
    code = main(
        ["bench", "serve", *SHORT, f"--target={server.target}", "--users=1", "--requests=1",
         f"--oracle={tmp_path / 'none'}", f"--oracle-cache={tmp_path / 'a'}"]
    )  # fmt: skip
    assert code == 1
    assert "the oracle's engine ended with code 1" in capsys.readouterr().err


@pytest.fixture(scope="module")
def demo_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tiny_engine import make_tiny

    return make_tiny(tmp_path_factory.mktemp("other"))


def test_a_server_that_dies(tiny_mixtral: Path, tmp_path: Path) -> None:
    """Real SIGKILL: what came before it was right, what did not come is counted by kind."""
    work = Workload(RandomIds(512), drawn(Fixed(5), Fixed(200)), seed=3, distinct=2)
    limits = RunLimits(in_flight=4, request_timeout_s=WAIT_S, drain_s=WAIT_S)
    with serving(tiny_mixtral, tmp_path, "--workers=0") as running:
        with contextlib.closing(Client(running.target)) as client:
            info = client.model_info()
        oracle = expected_answers(
            OracleSource(tiny_mixtral, tmp_path / "answers"),
            Judge(info.model_hash, info.engine_numerics_id, info.eos_ids),
            info.compute_mode,
            [work.request(index) for index in range(2)],
        )
        with LoadRun(GrpcTarget(running.target), work, ClosedLoop(4), limits) as run:
            eventually(lambda: run.progress().tokens > 100, WAIT_S, "tokens")
            assert running.end(signal.SIGKILL) == -signal.SIGKILL
            eventually(lambda: run.progress().failed > 4, WAIT_S, "failures")
            run.stop(WAIT_S)
            result = run.wait(WAIT_S)
    metrics, report = measure(result), oracle.judge_all(result.records)
    assert set(metrics.errors) == {"WorkerLost"}
    assert report.held, report.wrong
    assert report.partial >= 1
    assert report.tokens > 100


def test_answers_outlive_their_coordinator(tiny_mixtral: Path, tmp_path: Path) -> None:
    """The coordinator is killed in the middle of answers and another one starts at its address: with `resume`
    every answer goes on, and every token is the expected one."""
    work = Workload(RandomIds(512), drawn(Fixed(5), Fixed(300)), seed=4, distinct=3,
                    sampling=SamplingSpec(temperature=0.9, top_p=0.95))  # fmt: skip
    limits = RunLimits(in_flight=3, request_timeout_s=60.0, drain_s=60.0)
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()
    listen = f"unix:{tmp_path}/s"
    with serving(tiny_mixtral, tmp_path / "first", "--workers=0", listen=listen) as first:
        with contextlib.closing(Client(first.target)) as client:
            info = client.model_info()
        oracle = expected_answers(
            OracleSource(tiny_mixtral, tmp_path / "answers"),
            Judge(info.model_hash, info.engine_numerics_id, info.eos_ids),
            info.compute_mode,
            [work.request(index) for index in range(3)],
        )
        with LoadRun(GrpcTarget(first.target, resume=True), work, ClosedLoop(3, requests=6), limits) as run:
            eventually(lambda: run.progress().tokens > 100, WAIT_S, "tokens")
            assert first.end(signal.SIGKILL) == -signal.SIGKILL
            with serving(tiny_mixtral, tmp_path / "second", "--workers=0", listen=listen):
                result = run.wait(60.0)
    metrics, report = measure(result), oracle.judge_all(result.records)
    assert (metrics.completed, metrics.failed, metrics.errors) == (6, 0, {})
    assert metrics.resumed >= 1
    assert report.held, report.wrong
    assert (report.answers, report.tokens) == (6, 1800)


def test_an_openai_server(capsys: pytest.CaptureFixture[str], tiny_mixtral: Path) -> None:
    with openai_server() as peer:
        code, found = bench(capsys, f"--openai={peer.url}", "--openai-model=m", "--vocab=50", "--users=2",
                            "--requests=5")  # fmt: skip
        assert code == 0, found["faults"]
        assert (found["endpoint_type"], found["completed"], found["oracle"]) == ("openai-ids", 5, None)
        code, found = bench(capsys, f"--openai={peer.url}", f"--tokenizer={tiny_mixtral}", "--openai-form=chat",
                            "--users=1", "--requests=2")  # fmt: skip
        assert code == 0, found["faults"]
        assert isinstance(peer.bodies[-1]["messages"][0]["content"], str)
        peer.behave = "broken"
        code, found = bench(capsys, f"--openai={peer.url}", "--vocab=50", "--users=1", "--requests=2")
        assert code == 1
        assert found["errors_by_kind"] == {"HTTP 500": 2}
