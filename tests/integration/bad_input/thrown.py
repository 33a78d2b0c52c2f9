"""Throws a case of the tables at a live server or worker; returns what was not as it must be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import grpc

from colibri.models.checkpoint import Checkpoint
from colibri.wire.limits import FrameLimits
from tests.integration.bad_input.frames import CASES as FRAMES
from tests.integration.bad_input.frames import FrameCase
from tests.integration.bad_input.live import WAIT_S, Live, status_of
from tests.integration.bad_input.requests import GENERATION, ROUTER, CallCase, workers_control
from tests.support.worker_client import limits_of


@dataclass(frozen=True, slots=True)
class Targets:
    """A live server, a channel to its worker w0, and what that worker's model allows."""

    live: Live
    worker: grpc.Channel
    limits: FrameLimits
    control: tuple[CallCase, ...]


@contextmanager
def targets(live: Live) -> Iterator[Targets]:
    with live.worker_channel() as channel:
        numerics = status_of(channel).expert_numerics_id
        control = workers_control(Checkpoint.open(live.model).model_hash(), numerics)
        yield Targets(live, channel, limits_of(live.model, "bf16"), control)


def throw(targets: Targets, case: CallCase | FrameCase) -> str:
    """Empty where it is refused just as the table says."""
    refusal = case.refusal
    if isinstance(case, FrameCase):
        kind, reply = targets.live.exchange(targets.worker, case.make(targets.limits))
        if kind != case.answer:
            return f"{case.id}: expected a frame of kind {case.answer}, got {kind}, {reply}"
        code = refusal.code if kind is not None else reply.code
    else:
        channel = targets.worker if case.method.startswith("/colibri.v1.Expert/") else None
        reply = targets.live.call(
            case.method, case.make(), timeout_s=case.timeout_s or WAIT_S, channel=channel
        )
        code = reply.code
    differs = refusal.differs(reply.message)
    if code is not refusal.code or differs:
        return f"{case.id}: expected {refusal.code}, got {code}; {differs}"
    return ""


def all_cases(targets: Targets) -> list[CallCase | FrameCase]:
    """Everything that is thrown at a running server and its worker."""
    return [*GENERATION, *ROUTER, *targets.control, *FRAMES]
