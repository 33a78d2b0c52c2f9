"""gRPC service Router: one MoE layer for services that bring their own hidden states.

Raises typed errors; colibri.rpc.server turns them into statuses.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc
import numpy as np

from colibri.errors import BadRow, InvalidInput
from colibri.kernels.api import F32, Array, ComputeMode
from colibri.kernels.reference.floats import to_bf16
from colibri.router_service.router import MoeRouter
from colibri.rpc.deadline import deadline_of
from colibri.rpc.server import Service
from colibri.v1 import router_pb2, router_pb2_grpc

SERVICE = "colibri.v1.Router"
#: What a message holds besides its rows: fields of fixed size, and a status byte or two per row.
_OVERHEAD_BYTES = 64 << 10


def max_message_bytes(hidden: int, max_rows: int) -> int:
    """gRPC message limit of a server of this service, and of its clients."""
    return max_rows * (hidden * 4 + 256) + _OVERHEAD_BYTES


class RouterServicer(router_pb2_grpc.RouterServicer):
    """Serves a MoeRouter. max_rows: rows of one call; one more is INVALID_ARGUMENT."""

    def __init__(self, router: MoeRouter, *, model_hash: str, expert_numerics_id: str, max_rows: int) -> None:
        if max_rows < 1:
            raise InvalidInput("max_rows", "at least 1", max_rows)
        self._router = router
        self._model_hash = model_hash
        self._expert_numerics_id = expert_numerics_id
        self._max_rows = max_rows

    def as_service(self) -> Service:
        """For colibri.rpc.server.build_server."""
        return Service(SERVICE, lambda server: router_pb2_grpc.add_RouterServicer_to_server(self, server))

    def Forward(
        self, request: router_pb2.ForwardRequest, context: grpc.ServicerContext
    ) -> router_pb2.ForwardReply:
        x = self._rows(request)
        result = self._router.forward(request.layer, x, deadline_of(context), request.priority)
        for _, error in sorted(result.failed.items()):
            if not isinstance(error, BadRow):
                raise error
        return router_pb2.ForwardReply(
            rows=len(x),
            hidden=self._router.hidden,
            data=result.rows.tobytes(),
            status=_statuses(len(x), result.failed),
            epoch=result.epoch,
            expert_numerics_id=self._expert_numerics_id,
        )

    def Gate(self, request: router_pb2.GateRequest, context: grpc.ServicerContext) -> router_pb2.GateReply:
        result = self._router.gate(request.layer, self._rows(request))
        return router_pb2.GateReply(
            rows=len(result.ok),
            top_k=self._router.top_k,
            expert=result.experts.ravel().tolist(),
            weight=result.weights.ravel().tolist(),
            status=_statuses(len(result.ok), np.flatnonzero(~result.ok).tolist()),
        )

    def RouterInfo(
        self, request: router_pb2.RouterInfoRequest, context: grpc.ServicerContext
    ) -> router_pb2.RouterInfoReply:
        placement = self._router.directory.current().placement
        return router_pb2.RouterInfoReply(
            model_hash=self._model_hash,
            layers=self._router.layers,
            hidden=self._router.hidden,
            experts=self._router.experts,
            top_k=self._router.top_k,
            compute_mode=self._router.mode.value,
            expert_numerics_id=self._expert_numerics_id,
            epoch=placement.epoch,
            workers=placement.workers,
            max_rows=self._max_rows,
        )

    def _rows(self, request: router_pb2.ForwardRequest | router_pb2.GateRequest) -> Array:
        """The request's rows in the mode's dtype. Raises InvalidInput before anything is allocated."""
        router = self._router
        if request.layer >= router.layers:
            raise InvalidInput("layer", f"0 to {router.layers - 1}", request.layer)
        if request.hidden != router.hidden:
            raise InvalidInput("hidden", str(router.hidden), request.hidden)
        if request.rows > self._max_rows:
            raise InvalidInput("rows", f"0 to {self._max_rows}", request.rows)
        expected = request.rows * request.hidden * 4
        if len(request.data) != expected:
            raise InvalidInput("data", f"{expected} bytes (rows x hidden fp32)", f"{len(request.data)} bytes")
        x: F32 = np.frombuffer(request.data, dtype="<f4").reshape(request.rows, request.hidden)
        return to_bf16(x) if router.mode is ComputeMode.BF16 else x


def _statuses(rows: int, bad: Iterable[int]) -> list[router_pb2.RowStatus.ValueType]:
    """Empty when no row is bad."""
    marked = set(bad)
    if not marked:
        return []
    return [
        router_pb2.ROW_STATUS_NOT_FINITE if row in marked else router_pb2.ROW_STATUS_OK for row in range(rows)
    ]
