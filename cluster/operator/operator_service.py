"""The gRPC service Operator: status, and commands that change the placement while requests run."""

from __future__ import annotations

import time
from collections.abc import Iterator

import grpc

from colibri.cluster.operator.cluster_status import StatusSources, cluster_status, placement_plan
from colibri.cluster.placing.commands import Command, Drain, Move, Scale
from colibri.cluster.placing.manager import PlacementManager
from colibri.cluster.placing.transaction import Step
from colibri.deadline import Clock
from colibri.errors import InvalidInput
from colibri.rpc.server import Service
from colibri.security.roles import Scope
from colibri.v1 import operator_pb2 as pb
from colibri.v1 import operator_pb2_grpc

#: Calls of this service that the server must take beside all others.
MAX_CALLS = 12
_MAX_TIMEOUT_S = 86400.0
_LOOK_S = 0.5
#: Longest name of a host (RFC 1035); workers' are short.
_MAX_NAME = 255


class OperatorServicer(operator_pb2_grpc.OperatorServicer):
    """Serves operators. A command goes on when its caller leaves. Raises typed errors, which colibri.rpc.server turns
    into statuses.

    manager: None if there are no workers to change.
    """

    def __init__(
        self, sources: StatusSources, manager: PlacementManager | None, clock: Clock = time.monotonic
    ) -> None:
        self._sources = sources
        self._manager = manager
        self._clock = clock

    def service(self) -> Service:
        """For build_server."""
        return Service(
            pb.DESCRIPTOR.services_by_name["Operator"].full_name,
            lambda server: operator_pb2_grpc.add_OperatorServicer_to_server(self, server),
            Scope.OPERATOR,
        )

    def ClusterStatus(
        self, request: pb.ClusterStatusRequest, context: grpc.ServicerContext
    ) -> pb.ClusterStatusReply:
        return cluster_status(self._sources, request.experts, request.loads, self._clock)

    def Drain(self, request: pb.DrainRequest, context: grpc.ServicerContext) -> Iterator[pb.ChangeProgress]:
        if bool(request.worker) == bool(request.host):
            got = "both" if request.worker else "nothing"
            raise InvalidInput("worker", "a worker's name, or a host in its place", got)
        worker, host = _name("worker", request.worker), _name("host", request.host)
        return self._carry_out(Drain(worker, request.undo, host), request.timeout_s, context)

    def Scale(self, request: pb.ScaleRequest, context: grpc.ServicerContext) -> Iterator[pb.ChangeProgress]:
        return self._carry_out(Scale(request.workers), request.timeout_s, context)

    def Move(self, request: pb.MoveRequest, context: grpc.ServicerContext) -> Iterator[pb.ChangeProgress]:
        to, source = _name("to", request.to), _name("from", getattr(request, "from"))
        command = Move((request.layer, request.expert), to, source)
        return self._carry_out(command, request.timeout_s, context)

    def Place(self, request: pb.PlaceRequest, context: grpc.ServicerContext) -> Iterator[pb.ChangeProgress]:
        manager = self._changing()
        plan = placement_plan(manager.proposal())
        epoch = self._sources.membership().placement.epoch
        if request.dry_run:
            yield pb.ChangeProgress(phase="plan", text="nothing was moved", epoch=epoch, done=True, plan=plan)
            return
        yield pb.ChangeProgress(
            phase="plan", text=f"{len(plan.loads)} copies to load", epoch=epoch, plan=plan
        )
        yield from self._carry_out(manager.place(), request.timeout_s, context)

    def _changing(self) -> PlacementManager:
        if self._manager is None:
            raise InvalidInput("workers", "a deployment with workers", "one without (--workers 0)")
        return self._manager

    def _carry_out(
        self, command: Command, timeout_s: float, context: grpc.ServicerContext
    ) -> Iterator[pb.ChangeProgress]:
        if not 0.0 <= timeout_s <= _MAX_TIMEOUT_S:
            raise InvalidInput("timeout_s", f"0 to {_MAX_TIMEOUT_S:g}", timeout_s)
        manager = self._changing()
        last = Step("commit", "nothing had to change")
        for step in manager.submit(command, timeout_s).steps(_LOOK_S):
            if step is not None:
                last = step
                yield _progress(step, done=False)
            elif not context.is_active():
                return
        last = Step(last.phase, f"{command.text}: done", last.experts_done, last.experts_total)
        yield _progress(last, done=True, epoch=self._sources.membership().placement.epoch)


def _name(field: str, text: str) -> str:
    """Checks a name, which goes into log and status. Raises InvalidInput for a name that no worker or host can have."""
    if len(text) > _MAX_NAME or not text.isprintable():
        raise InvalidInput(field, f"a name of at most {_MAX_NAME} printable characters", repr(text))
    return text


def _progress(step: Step, *, done: bool, epoch: int | None = None) -> pb.ChangeProgress:
    return pb.ChangeProgress(
        phase=step.phase,
        text=step.text,
        experts_done=step.experts_done,
        experts_total=step.experts_total,
        epoch=step.epoch if epoch is None else epoch,
        done=done,
    )
