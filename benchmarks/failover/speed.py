"""Tokens per second of a served deployment under a closed loop of users."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.chaos.plan import LoadSpec
from colibri.chaos.workload import workload_of
from colibri.client import Client
from colibri.load.arrivals import ClosedLoop
from colibri.load.result import RunLimits
from colibri.load.runner import LoadRun
from colibri.load.targets.colibri_grpc import GrpcTarget

USERS = 8
#: Answers long enough that prefill hardly counts.
LOAD = LoadSpec(users=USERS, prompt_tokens=16, output_tokens=256, distinct=16)


@dataclass(frozen=True, slots=True)
class Speed:
    """steps_s: seconds of one step of the engine, in which every user gets a token (median of all gaps)."""

    tokens_s: float
    steps_s: float
    failed: int


def measure(target: str, warm_s: float, seconds: float, seed: int, load: LoadSpec = LOAD) -> Speed:
    """Tokens of the `seconds` after the first `warm_s`."""
    with Client(target) as client:
        workload = workload_of(load, client.model_info(), seed)
    run = LoadRun(
        GrpcTarget(target, in_flight=load.users),
        workload,
        ClosedLoop(load.users, duration_s=warm_s + seconds),
        RunLimits(in_flight=load.users),
    )
    with run:
        result = run.wait(warm_s + seconds + 60.0)
    begin, end = result.started + warm_s, result.started + warm_s + seconds
    times = [at for record in result.records for at in record.token_times if begin <= at < end]
    gaps = sorted(
        gap.seconds
        for record in result.records
        for gap in record.gaps()
        if begin <= gap.start and gap.start + gap.seconds < end
    )
    failed = sum(record.failure is not None and record.failure.kind != "stopped" for record in result.records)
    return Speed(len(times) / seconds, gaps[len(gaps) // 2] if gaps else float("inf"), failed)
