"""The load harness against a real server of Generation: every token is kept, stalls are not hidden."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from colibri.bench.load.arrivals import ClosedLoop, OpenLoop, limited, poisson
from colibri.bench.load.lengths import Fixed, Uniform
from colibri.bench.load.metrics import measure
from colibri.bench.load.oracle import ExpectedAnswer, Judge, Oracle
from colibri.bench.load.prompts import RandomIds
from colibri.bench.load.record import BOUND_EXCEEDED, STOPPED
from colibri.bench.load.result import RunLimits
from colibri.bench.load.runner import LoadRun
from colibri.bench.load.targets.colibri_grpc import GrpcTarget
from colibri.bench.load.validity import judge_run
from colibri.bench.load.workload import SamplingSpec, Workload, drawn
from colibri.coordinator.engine import EngineOptions
from colibri.errors import ColibriError, ConfigError, WorkerLost
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from tests.support.served import Served, serve
from tests.support.tiny_engine import TINY, WAIT_S, TinyModel, Turnstile, make_tiny, wait_for

LIMITS = RunLimits(in_flight=32, request_timeout_s=WAIT_S, drain_s=WAIT_S)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    folder = make_tiny(tmp_path_factory.mktemp("tiny"))
    backend = make_backend("cpu", threads=1)
    try:
        opened = TinyModel.open(folder, backend, ComputeMode.BF16)
        yield opened
        opened.tokenizer.close()
    finally:
        backend.close()


def workload(distinct: int | None = None, tokens: int = 6) -> Workload:
    return Workload(
        RandomIds(TINY.vocab),
        drawn(Uniform(3, 9), Fixed(tokens)),
        seed=5,
        distinct=distinct,
        sampling=SamplingSpec(temperature=0.8, top_p=0.95),
    )


@pytest.fixture
def served(model: TinyModel, tmp_path: Path) -> Iterator[Served]:
    with serve(model, tmp_path, EngineOptions(kv_tokens=4096)) as server:
        yield server


def test_closed_loop_keeps_every_token(served: Served) -> None:
    run = LoadRun(GrpcTarget(served.target), workload(), ClosedLoop(users=4, requests=12), LIMITS)
    with run:
        result = run.wait(WAIT_S)
    assert sorted(record.index for record in result.records) == list(range(12))
    for record in result.records:
        assert record.failure is None
        assert record.finish_reason == "length"
        assert record.prompt_tokens == len(record.request.prompt_ids)
        assert len(record.ids) == len(record.receipts) == len(record.token_times) == 6
        assert record.sent is not None
        assert record.scheduled <= record.sent <= record.token_times[0] <= record.ended
    assert result.peak_in_flight == 4


def test_open_loop_sends_on_time(served: Served) -> None:
    arrivals = limited(poisson(60.0, 3), 30, None)
    with LoadRun(GrpcTarget(served.target), workload(), arrivals, LIMITS) as run:
        result = run.wait(WAIT_S)
    assert [record.failure for record in result.records] == [None] * 30
    by_index = sorted(result.records, key=lambda record: record.index)
    assert [record.scheduled - result.started for record in by_index] == pytest.approx(arrivals.offsets)
    assert all(record.sent is not None and record.sent >= record.scheduled for record in by_index)


def test_a_stall_is_not_hidden(model: TinyModel, tmp_path: Path) -> None:
    """The server stands still while all requests come due: they are sent all the same, and each one's time to
    first token begins when it was due. A closed loop stops asking instead."""
    gate = Turnstile(model.router)
    arrivals = limited(poisson(100.0, 7), 20, None)
    with serve(model, tmp_path, EngineOptions(kv_tokens=4096), gate) as served:
        with LoadRun(GrpcTarget(served.target), workload(), arrivals, LIMITS) as run:
            wait_for("every request to be sent", lambda: run.progress().sent == 20)
            wait_for("every request to be due", lambda: run.progress().elapsed_s > arrivals.offsets[-1])
            during = run.progress()
            opened = run.progress().elapsed_s
            gate.open()
            result = run.wait(WAIT_S)
        assert (during.completed, during.in_flight, during.tokens) == (0, 20, 0)
        for record in result.records:
            assert record.sent is not None
            assert record.ttft is not None
            due = arrivals.offsets[record.index]
            assert record.sent - result.started < opened
            assert record.ttft >= opened - due

        stalled = Turnstile(model.router)
    (tmp_path / "closed").mkdir()
    with (
        serve(model, tmp_path / "closed", EngineOptions(kv_tokens=4096), stalled) as served,
        LoadRun(GrpcTarget(served.target), workload(), ClosedLoop(2), LIMITS) as run,
    ):
        wait_for("two users to wait", lambda: run.progress().in_flight == 2)
        wait_for("as long as above", lambda: run.progress().elapsed_s > arrivals.offsets[-1])
        assert run.progress().sent == 2
        stalled.open()
        run.stop(WAIT_S)
        run.wait(WAIT_S)


def test_the_declared_bound_is_kept_and_told(model: TinyModel, tmp_path: Path) -> None:
    gate = Turnstile(model.router)
    limits = RunLimits(in_flight=3, request_timeout_s=WAIT_S, drain_s=WAIT_S)
    with serve(model, tmp_path, EngineOptions(kv_tokens=4096), gate) as served:
        arrivals = OpenLoop((0.0,) * 8)
        with LoadRun(GrpcTarget(served.target), workload(), arrivals, limits) as run:
            wait_for("the bound to be reached", lambda: run.progress().failed == 5)
            gate.open()
            result = run.wait(WAIT_S)
    kinds = [record.failure.kind for record in result.records if record.failure is not None]
    assert kinds == [BOUND_EXCEEDED] * 5
    assert result.peak_in_flight == 3
    assert not judge_run(result).valid
    with pytest.raises(ConfigError, match="users: expected at most 3"):
        LoadRun(GrpcTarget(served.target), workload(), ClosedLoop(4), limits)


def test_stop_ends_what_runs(model: TinyModel, tmp_path: Path) -> None:
    gate = Turnstile(model.router)
    with serve(model, tmp_path, EngineOptions(kv_tokens=4096), gate) as served:
        with LoadRun(GrpcTarget(served.target), workload(), ClosedLoop(2), LIMITS) as run:
            gate.wait_step()
            run.stop(0.0)
            result = run.wait(WAIT_S)
        assert result.stopped
        assert [record.failure.kind for record in result.records if record.failure] == [STOPPED] * 2
        gate.open()
        wait_for("the server to forget them", lambda: served.engine.stats().running == 0)


def test_stop_lets_answers_end(served: Served) -> None:
    with LoadRun(GrpcTarget(served.target), workload(tokens=40), ClosedLoop(3), LIMITS) as run:
        wait_for("tokens", lambda: run.progress().tokens > 0)
        run.stop(WAIT_S)
        result = run.wait(WAIT_S)
    assert result.records
    assert all(record.completed for record in result.records)


def test_duration_ends_a_closed_loop(served: Served) -> None:
    with LoadRun(GrpcTarget(served.target), workload(), ClosedLoop(2, duration_s=0.3), LIMITS) as run:
        result = run.wait(WAIT_S)
    assert all(record.completed for record in result.records)
    assert all(record.scheduled - result.started < 0.3 for record in result.records)
    assert not result.stopped


def test_refusals_are_failures_by_kind(served: Served) -> None:
    wide = Workload(RandomIds(TINY.vocab * 2), drawn(Fixed(64), Fixed(2)), seed=1)
    with LoadRun(GrpcTarget(served.target), wide, ClosedLoop(1, requests=2), LIMITS) as run:
        result = run.wait(WAIT_S)
    assert measure(result).errors == {"InvalidInput": 2}
    assert all("token id from 0 to 299" in r.failure.message for r in result.records if r.failure)


def test_nobody_there(tmp_path: Path) -> None:
    limits = RunLimits(connect_timeout_s=0.3)
    run = LoadRun(GrpcTarget(f"unix:{tmp_path}/none"), workload(), ClosedLoop(1), limits)
    with pytest.raises(ColibriError, match="none"):
        run.start()
    assert run.over
    with pytest.raises(ColibriError, match="none"):
        run.wait(WAIT_S)


def has_tokens(run: LoadRun, count: int) -> bool:
    return run.progress().tokens >= count


def test_resumed_answers_are_the_same(model: TinyModel, tmp_path: Path) -> None:
    """A step fails in the middle of the answers: with `resume` they go on, and oracle and reader see one answer
    each."""
    work = workload(distinct=3, tokens=12)
    with (
        serve(model, tmp_path, EngineOptions(kv_tokens=4096)) as served,
        LoadRun(GrpcTarget(served.target), work, ClosedLoop(1, requests=3), LIMITS) as run,
    ):
        quiet = run.wait(WAIT_S)
    judge = Judge("m", "n", ())
    oracle = Oracle(judge, {})
    for record in quiet.records:
        oracle.add(record.request, ExpectedAnswer(record.ids, record.receipts, record.finish_reason))

    for resume in (True, False):
        gate = Turnstile(model.router)
        folder = tmp_path / str(resume)
        folder.mkdir()
        with serve(model, folder, EngineOptions(kv_tokens=4096), gate) as served:
            target = GrpcTarget(served.target, resume=resume)
            with LoadRun(target, work, ClosedLoop(3, requests=3), LIMITS) as run:
                gate.let(5)
                wait_for("tokens", partial(has_tokens, run, 3))
                gate.error = WorkerLost("w0 is gone", retry_after_s=0.01)
                gate.open()
                result = run.wait(WAIT_S)
        report = oracle.judge_all(result.records)
        assert report.held, report.wrong
        cut = [record for record in result.records if record.resumes or record.failure]
        assert cut
        if resume:
            assert measure(result).failed == 0
            assert (report.answers, report.tokens) == (3, 36)
        else:
            assert {record.failure.kind for record in cut if record.failure} == {"WorkerLost"}
            assert any(record.ids for record in cut)
            assert report.partial >= 1
