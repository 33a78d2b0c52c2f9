"""Tokens per second of a served deployment under a closed loop of users."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from colibri.bench.chaos.plan import LoadSpec
from colibri.bench.chaos.workload import workload_of
from colibri.bench.load.arrivals import ClosedLoop
from colibri.bench.load.record import STOPPED
from colibri.bench.load.result import RunLimits
from colibri.bench.load.runner import LoadRun
from colibri.bench.load.targets.colibri_grpc import GrpcTarget
from colibri.client import Client

USERS = 8
#: Answers long enough that prefill hardly counts.
LOAD = LoadSpec(users=USERS, prompt_tokens=16, output_tokens=256, distinct=16)


@dataclass(frozen=True, slots=True)
class Speed:
    """tokens: that arrived in the `seconds` after the first ones; failed: requests, over the whole run."""

    tokens: int
    seconds: float
    failed: int

    @property
    def tokens_s(self) -> float:
        return self.tokens / self.seconds

    @property
    def step_s(self) -> float:
        """Of one step of the engine, in which every user gets a token."""
        return USERS / self.tokens_s


def measure(
    target: str, warm_s: float, seconds: float, seed: int, mark: Callable[[], None] = lambda: None
) -> Speed:
    """mark: called when the `seconds` begin and when they are over."""
    with Client(target) as client:
        workload = workload_of(LOAD, client.model_info(), seed)
    run = LoadRun(
        GrpcTarget(target, in_flight=USERS), workload, ClosedLoop(USERS), RunLimits(in_flight=USERS)
    )
    with run:
        time.sleep(warm_s)
        mark()
        begin = time.monotonic()
        time.sleep(seconds)
        end = time.monotonic()
        mark()
        run.stop(0.0)
        result = run.wait(30.0)
    tokens = sum(begin <= at < end for record in result.records for at in record.token_times)
    failures = [record.failure for record in result.records if record.failure is not None]
    return Speed(tokens, end - begin, sum(failure.kind != STOPPED for failure in failures))
