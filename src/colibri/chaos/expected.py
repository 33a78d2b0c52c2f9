"""What the answers must be: the same requests, asked of a server without workers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from colibri.chaos.plan import LoadSpec, ServeSpec
from colibri.chaos.serving import serve_command, serving
from colibri.client import Client, ModelInfo
from colibri.errors import ColibriError
from colibri.load.arrivals import ClosedLoop
from colibri.load.lengths import Fixed
from colibri.load.oracle import ExpectedAnswer, Judge, Oracle
from colibri.load.prompts import RandomIds
from colibri.load.runner import LoadRun, RunLimits
from colibri.load.targets.colibri_grpc import GrpcTarget
from colibri.load.workload import SamplingSpec, Workload, drawn

_ALONE_USERS = 4
_BOUND_S = 600.0


def workload_of(spec: LoadSpec, model: ModelInfo, seed: int) -> Workload:
    """`spec.distinct` prompts of random ids, then the same again."""
    return Workload(
        RandomIds(model.vocab, model.eos_ids),
        drawn(Fixed(spec.prompt_tokens), Fixed(spec.output_tokens)),
        seed=seed,
        distinct=spec.distinct,
        sampling=SamplingSpec(temperature=spec.temperature),
    )


def judge_of(model: ModelInfo) -> Judge:
    return Judge(model.model_hash, model.engine_numerics_id, model.eos_ids)


def ask_oracle(
    folder: Path,
    options: tuple[str, ...],
    workload: Workload,
    requests: int,
    model: ModelInfo,
    log: Callable[[str], None] = lambda line: None,
) -> Oracle:
    """Expected answers to the first `requests` of a workload. options: of `colibri serve`, those that change
    no worker. Raises ColibriError, also when that server computes other bits than `model` says."""
    oracle = Oracle(judge_of(model), {})
    command = serve_command(folder, ServeSpec(str(folder), 0, 1, options))
    with serving([word for word in command if word != "--allow-faults"], log=log) as alone:
        with Client(alone.target) as client:
            info = client.model_info()
        if judge_of(info) != judge_of(model):
            raise ColibriError(
                f"the oracle computes as {judge_of(info)}, the deployment as {judge_of(model)}"
            )
        run = LoadRun(
            GrpcTarget(alone.target),
            workload,
            ClosedLoop(_ALONE_USERS, requests=requests),
            RunLimits(request_timeout_s=_BOUND_S),
        )
        with run:
            result = run.wait(_BOUND_S)
    for record in result.records:
        if record.failure is not None:
            raise ColibriError(f"the oracle failed: {record.failure.message}")
        oracle.add(record.request, ExpectedAnswer(record.ids, record.receipts, record.finish_reason))
    return oracle
