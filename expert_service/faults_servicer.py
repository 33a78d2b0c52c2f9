"""The gRPC service Faults, of workers that were started with --allow-faults."""

from __future__ import annotations

import grpc

from colibri.errors import InvalidInput
from colibri.expert_service.faults import FaultKind, FaultRule, Faults
from colibri.rpc.server import Service
from colibri.security.roles import Scope
from colibri.v1 import faults_pb2, faults_pb2_grpc

SERVICE_NAME = "colibri.v1.Faults"


class FaultsServicer(faults_pb2_grpc.FaultsServicer):
    """Raises typed errors; colibri.rpc.server turns them into statuses."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def service(self) -> Service:
        """For colibri.rpc.server.build_server."""
        return Service(
            SERVICE_NAME,
            lambda server: faults_pb2_grpc.add_FaultsServicer_to_server(self, server),
            Scope.PLANE,
        )

    def SetFaults(
        self, request: faults_pb2.SetFaultsRequest, context: grpc.ServicerContext
    ) -> faults_pb2.SetFaultsReply:
        self._faults.replace([_rule(fault) for fault in request.faults])
        counts = self._faults.injected
        return faults_pb2.SetFaultsReply(
            injected=sum(counts.values()), by_kind={int(kind): count for kind, count in counts.items()}
        )


def _rule(fault: faults_pb2.Fault) -> FaultRule:
    try:
        kind = FaultKind(fault.kind)
    except ValueError:
        raise InvalidInput("kind", f"1 to {max(FaultKind)}", fault.kind) from None
    return FaultRule(kind, fault.probability, fault.delay_us * 1e-6, fault.seed, fault.most)
