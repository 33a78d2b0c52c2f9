"""gRPC service Router: one MoE layer for services that bring their own hidden states.

Raises typed errors; colibri.rpc.server turns them into statuses.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import grpc
import numpy as np

from colibri.errors import BadRow, ColibriError, InvalidInput
from colibri.grpc_options import CONTROL_MESSAGE_BYTES
from colibri.kernels.api import F32, Array, ComputeMode, GateResult
from colibri.kernels.arithmetic.floats import to_bf16
from colibri.router_service.pieces import SMALL_ROWS, Pauses, Pieces
from colibri.router_service.router import MoeResult, MoeRouter
from colibri.rpc.deadline import deadline_of
from colibri.rpc.reading import Size
from colibri.rpc.server import Service
from colibri.rpc.turns import Waiter
from colibri.v1 import router_pb2, router_pb2_grpc
from colibri.wire.limits import DEFAULT_MAX_ROWS

SERVICE = "colibri.v1.Router"
#: What a message holds besides its rows: fields of fixed size, and a status byte or two per row.
_OVERHEAD_BYTES = 64 << 10


def max_message_bytes(hidden: int, max_rows: int) -> int:
    """Returns the gRPC message limit for a server of this service and for its clients."""
    return max_rows * (hidden * 4 + 256) + _OVERHEAD_BYTES


class RouterServicer(router_pb2_grpc.RouterServicer):
    """Serves a MoeRouter.

    max_rows: rows of one call; one more is INVALID_ARGUMENT.
    pauses: of the engine that computes on the same processors; None: there is none.
    """

    def __init__(
        self,
        router: MoeRouter,
        *,
        model_hash: str,
        expert_numerics_id: str,
        max_rows: int,
        pauses: Pauses | None = None,
    ) -> None:
        if max_rows < 1:
            raise InvalidInput("max_rows", "at least 1", max_rows)
        self._pieces = (
            None if pauses is None else Pieces(pauses, min(max_rows, DEFAULT_MAX_ROWS), time.monotonic)
        )
        self._router = router
        self._model_hash = model_hash
        self._expert_numerics_id = expert_numerics_id
        self._max_rows = max_rows

    def as_service(self) -> Service:
        """For colibri.rpc.server.build_server."""
        size = Size(max(CONTROL_MESSAGE_BYTES, max_message_bytes(self._router.hidden, self._max_rows)))
        return Service(
            SERVICE,
            lambda server: router_pb2_grpc.add_RouterServicer_to_server(self, server),
            sizes={"Forward": size, "Gate": size},
        )

    def Forward(
        self, request: router_pb2.ForwardRequest, context: grpc.ServicerContext
    ) -> router_pb2.ForwardReply:
        x = self._rows(request)
        result = self._forward(request, x, context)
        return router_pb2.ForwardReply(
            rows=len(x),
            hidden=self._router.hidden,
            data=result.rows.tobytes(),
            status=_statuses(len(x), result.failed),
            epoch=result.epoch,
            expert_numerics_id=self._expert_numerics_id,
        )

    def Gate(self, request: router_pb2.GateRequest, context: grpc.ServicerContext) -> router_pb2.GateReply:
        result = self._gate(request.layer, self._rows(request), context)
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

    def _forward(
        self, request: router_pb2.ForwardRequest, x: F32, context: grpc.ServicerContext
    ) -> MoeResult:
        """Computes the request. Raises the first error that does not concern a single bad row."""
        deadline = deadline_of(context)

        def compute(first: int, end: int) -> MoeResult:
            rows = self._in_mode(x[first:end])
            result = self._router.forward(request.layer, rows, deadline, request.priority)
            for _, error in sorted(result.failed.items()):
                if not isinstance(error, BadRow):
                    raise error
            return result

        if self._pieces is None or len(x) <= SMALL_ROWS:
            return compute(0, len(x))
        results = self._pieces.run(len(x), Waiter.of(context, deadline), compute)
        failed: dict[int, ColibriError] = {}
        first = 0
        for result in results:
            failed.update({first + row: error for row, error in result.failed.items()})
            first += len(result.rows)
        return MoeResult(np.concatenate([result.rows for result in results]), failed, results[-1].epoch)

    def _gate(self, layer: int, x: F32, context: grpc.ServicerContext) -> GateResult:
        def compute(first: int, end: int) -> GateResult:
            return self._router.gate(layer, self._in_mode(x[first:end]))

        if self._pieces is None or len(x) <= SMALL_ROWS:
            return compute(0, len(x))
        results = self._pieces.run(len(x), Waiter.of(context, deadline_of(context)), compute)
        return GateResult(
            np.concatenate([result.experts for result in results]),
            np.concatenate([result.weights for result in results]),
            np.concatenate([result.ok for result in results]),
        )

    def _in_mode(self, x: F32) -> Array:
        """The rows in the mode's dtype."""
        return to_bf16(x) if self._router.mode is ComputeMode.BF16 else x

    def _rows(self, request: router_pb2.ForwardRequest | router_pb2.GateRequest) -> F32:
        """The request's rows, a view of its bytes. Raises InvalidInput before anything is allocated."""
        router = self._router
        if request.layer >= router.layers:
            raise InvalidInput("layer", f"0 to {router.layers - 1}", request.layer)
        if request.hidden != router.hidden:
            raise InvalidInput("hidden", str(router.hidden), request.hidden)
        if request.rows > self._max_rows:
            raise InvalidInput("rows", f"0 to {self._max_rows}", request.rows)
        expected = request.rows * request.hidden * 4
        data = request.data  # a copy, each time
        if len(data) != expected:
            raise InvalidInput("data", f"{expected} bytes (rows x hidden fp32)", f"{len(data)} bytes")
        x: F32 = np.frombuffer(data, dtype="<f4").reshape(request.rows, request.hidden)
        return x


def _statuses(rows: int, bad: Iterable[int]) -> list[router_pb2.RowStatus.ValueType]:
    """Returns a status per row; empty if no row is bad."""
    marked = set(bad)
    if not marked:
        return []
    return [
        router_pb2.ROW_STATUS_NOT_FINITE if row in marked else router_pb2.ROW_STATUS_OK for row in range(rows)
    ]
