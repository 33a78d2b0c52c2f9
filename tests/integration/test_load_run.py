"""The load harness against a real server of Generation: every token is kept, stalls are not hidden."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.coordinator.engine import EngineOptions
from colibri.errors import ColibriError, ConfigError
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from colibri.load.arrivals import ClosedLoop, OpenLoop, limited, poisson
from colibri.load.lengths import Fixed, Uniform
from colibri.load.prompts import RandomIds
from colibri.load.record import BOUND_EXCEEDED, STOPPED
from colibri.load.runner import LoadRun, RunLimits
from colibri.load.targets.colibri_grpc import GrpcTarget
from colibri.load.workload import SamplingSpec, Workload, drawn
from tests.support.served import Served, serve
from tests.support.tiny_engine import TINY, WAIT_S, TinyModel, Turnstile, make_tiny, wait_for

LIMITS = RunLimits(in_flight=32, request_timeout_s=WAIT_S, drain_s=WAIT_S)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    folder = make_tiny(tmp_path_factory.mktemp("tiny"))
    backend = make_backend("cpu", threads=1)
    try:
        yield TinyModel.open(folder, backend, ComputeMode.BF16)
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
