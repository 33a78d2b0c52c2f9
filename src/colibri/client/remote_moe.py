"""Run the experts of a transformers Mixtral in a cluster.

Each MoE block of the model is replaced by a call of Router.Forward. Gate, experts and merge happen there; the rest
of the model stays in its program. torch and transformers are the caller's.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import grpc
import numpy as np
from numpy.typing import NDArray

from colibri.client.channel import Server, client_options
from colibri.client.retry import Attempts, Retry
from colibri.client.sync import QUICK_S, ask
from colibri.deadline import Deadline
from colibri.errors import FrameError, InvalidInput
from colibri.grpc_options import CONTROL_MESSAGE_BYTES
from colibri.security.channel import ChannelSecurity, Metadata
from colibri.v1 import router_pb2 as pb
from colibri.v1 import router_pb2_grpc

Rows = NDArray[np.float32]

#: What a message holds besides its rows: fields of fixed size, and a status byte or two per row.
_OVERHEAD_BYTES = 64 << 10
_STATUS_BYTES = 2
#: Calls of one long prompt at a time: one is on its way while the other is computed.
_UNDER_WAY = 2
#: Rows that each layer's gate is compared with before a model is changed.
_PROBE_ROWS = 16
#: A chosen expert counts when its logit leads by this share of the row's spread: the server may round rows to bf16.
_CLEAR = 0.05


#: An existing program has no place to ask again.
_RETRY = Retry()


@dataclass(frozen=True, slots=True)
class LayerCalls:
    """What one layer cost: forward calls, their rows, and the seconds they took, including conversions of tensors."""

    calls: int = 0
    rows: int = 0
    seconds: float = 0.0


class RemoteMoe:
    """The connection that the replaced blocks share. `close` ends it, and with it the model's use. Thread-safe."""

    def __init__(
        self, target: str, timeout_s: float, retry: Retry | None, security: ChannelSecurity | None = None
    ) -> None:
        self._server = Server.of(target, security)
        self.target = self._server.target
        self._timeout_s = timeout_s
        self._retry = retry
        self._channel = self._server.security.open(self.target, client_options())
        self._stub = router_pb2_grpc.RouterStub(self._channel)
        self._lock = threading.Lock()
        self._layers: dict[int, LayerCalls] = {}
        try:
            self.info = ask(
                self._stub.RouterInfo, pb.RouterInfoRequest(), self._attempts(QUICK_S), self._server
            )
        except BaseException:
            self._channel.close()
            raise
        # No message above the limit that every channel has; a long prompt goes in several calls.
        fitting = (CONTROL_MESSAGE_BYTES - _OVERHEAD_BYTES) // (self.info.hidden * 4 + _STATUS_BYTES)
        self.rows_per_call = max(1, min(self.info.max_rows, fitting))

    def forward(self, layer: int, rows: Rows) -> Rows:
        """Computes a layer's experts. Returns the merged rows, fp32 [rows, hidden], without the residual.

        rows: fp32 [rows, hidden], after the layer's second norm.

        A row with NaN or Inf comes back as NaN, as from the model's own block. Raises ColibriError, naming the
        process that failed.
        """
        deadline = Deadline.after(self._timeout_s)
        step = self.rows_per_call
        if len(rows) <= step:
            request = self._request(layer, rows)
            return self._finish(self._stub.Forward, request, deadline)
        merged: list[Rows] = []
        under_way: deque[tuple[_Started, pb.ForwardRequest]] = deque()
        try:
            for at in range(0, len(rows), step):
                request = self._request(layer, rows[at : at + step])
                started = _Started(self._stub, request, deadline.remaining(), self._server.metadata())
                under_way.append((started, request))
                if len(under_way) == _UNDER_WAY:
                    merged.append(self._finish(*under_way.popleft(), deadline))
            while under_way:
                merged.append(self._finish(*under_way.popleft(), deadline))
        finally:
            for call, _ in under_way:
                call.cancel()
        return np.concatenate(merged)

    def gate(self, layer: int, rows: Rows) -> NDArray[np.uint32]:
        """Returns the experts that the server chooses, the likeliest first: uint32 [rows, top_k]."""
        request = pb.GateRequest(layer=layer, rows=len(rows), hidden=rows.shape[1], data=_data(rows))
        reply = ask(self._stub.Gate, request, self._attempts(QUICK_S), self._server)
        if len(reply.expert) != len(rows) * self.info.top_k:
            raise FrameError(
                f"{self.target}: {len(reply.expert)} experts for {len(rows)} rows", peer=self.target
            )
        return np.array(reply.expert, np.uint32).reshape(len(rows), self.info.top_k)

    def count(self, layer: int, rows: int, seconds: float) -> None:
        """Adds one call of a replaced block to the sums."""
        with self._lock:
            so_far = self._layers.get(layer, LayerCalls())
            self._layers[layer] = LayerCalls(so_far.calls + 1, so_far.rows + rows, so_far.seconds + seconds)

    def layers(self) -> dict[int, LayerCalls]:
        """Returns what each layer has cost so far."""
        with self._lock:
            return dict(sorted(self._layers.items()))

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _attempts(self, timeout_s: float) -> Attempts:
        return Attempts(self._retry, Deadline.after(timeout_s))

    def _finish(
        self, call: Callable[..., pb.ForwardReply], request: pb.ForwardRequest, deadline: Deadline
    ) -> Rows:
        reply = ask(call, request, Attempts(self._retry, deadline), self._server)
        return self._rows_of(reply, request.rows)

    def _request(self, layer: int, rows: Rows) -> pb.ForwardRequest:
        return pb.ForwardRequest(layer=layer, rows=len(rows), hidden=rows.shape[1], data=_data(rows))

    def _rows_of(self, reply: pb.ForwardReply, rows: int) -> Rows:
        hidden = self.info.hidden
        if (reply.rows, reply.hidden, len(reply.data)) != (rows, hidden, rows * hidden * 4):
            raise FrameError(
                f"{self.target}: [{reply.rows}, {reply.hidden}] in {len(reply.data)} bytes for [{rows}, {hidden}]",
                peer=self.target,
            )
        if len(reply.status) not in (0, rows):
            raise FrameError(f"{self.target}: {len(reply.status)} statuses for {rows} rows", peer=self.target)
        merged: Rows = np.frombuffer(reply.data, "<f4").reshape(rows, hidden).copy()
        merged[[at for at, status in enumerate(reply.status) if status != pb.ROW_STATUS_OK]] = np.nan
        return merged


class _Started:
    """A Forward in flight. Asking it again begins anew."""

    def __init__(
        self,
        stub: router_pb2_grpc.RouterStub,
        request: pb.ForwardRequest,
        timeout_s: float | None,
        metadata: Metadata | None,
    ) -> None:
        self._stub = stub
        self._first: grpc.Future[pb.ForwardReply] | None = stub.Forward.future(
            request, timeout=timeout_s, metadata=metadata
        )

    def __call__(
        self, request: pb.ForwardRequest, timeout: float | None, metadata: Metadata | None
    ) -> pb.ForwardReply:
        first, self._first = self._first, None
        if first is not None:
            return first.result()
        return self._stub.Forward(request, timeout=timeout, metadata=metadata)

    def cancel(self) -> None:
        if self._first is not None:
            self._first.cancel()


def _data(rows: Rows) -> bytes:
    return np.ascontiguousarray(rows, "<f4").tobytes()


def remote_moe(
    model: Any,
    target: str,
    *,
    timeout_s: float = 60.0,
    retry: Retry | None = _RETRY,
    security: ChannelSecurity | None = None,
) -> RemoteMoe:
    """Replaces the MoE blocks of a transformers Mixtral in place by calls to a server, and drops their weights.

    model: MixtralForCausalLM or its base. Afterwards it is for inference only: its parameters take no gradients.
    target: a `colibri serve` or `colibri router` of the same checkpoint.
    timeout_s: of one layer's call, retries included, seconds.
    security: of the channel and its calls, as in Client.

    Before anything is changed, shapes are compared, and each gate's choices for some rows. Raises InvalidInput if
    the server has another model. The blocks raise ColibriError.
    """
    torch = importlib.import_module("torch")
    blocks = _blocks(model)
    remote = RemoteMoe(target, timeout_s, retry, security)
    try:
        _compare(torch, model.config, [block for _, _, block in blocks], remote)
    except BaseException:
        remote.close()
        raise
    kind = _block_class(torch)
    for number, (layer, name, block) in enumerate(blocks):
        setattr(layer, name, kind(remote, number, block.training))
    model.requires_grad_(False)
    return remote


def _blocks(model: Any) -> list[tuple[Any, str, Any]]:
    """Returns (decoder layer, attribute, MoE block) in the order of the layers. Raises InvalidInput."""
    layers = getattr(getattr(model, "model", model), "layers", None)
    kind = type(model).__name__
    if layers is None or not kind.startswith("Mixtral"):
        raise InvalidInput("model", "a transformers Mixtral", kind)
    if getattr(model.config, "output_router_logits", False):
        raise InvalidInput("model.config.output_router_logits", "False: the gate runs in the cluster", True)
    found = []
    for at, layer in enumerate(layers):
        block = getattr(layer, "mlp", None)
        if type(block).__name__ != "MixtralSparseMoeBlock":
            raise InvalidInput(
                f"model.layers[{at}].mlp",
                "MixtralSparseMoeBlock, as transformers 5 has it",
                f"{type(block).__name__} (attributes {', '.join(name for name, _ in layer.named_children())})",
            )
        found.append((layer, "mlp", block))
    return found


def _compare(torch: Any, config: Any, blocks: list[Any], remote: RemoteMoe) -> None:
    """Raises InvalidInput if the server has another model."""
    info = remote.info
    for field, own, theirs in (
        ("layers", len(blocks), info.layers),
        ("hidden_size", config.hidden_size, info.hidden),
        ("num_local_experts", config.num_local_experts, info.experts),
        ("num_experts_per_tok", config.num_experts_per_tok, info.top_k),
    ):
        if own != theirs:
            raise InvalidInput(f"model.config.{field}", f"{theirs}, as {remote.target} has it", own)
    rows = np.random.default_rng(0).standard_normal((_PROBE_ROWS, info.hidden), np.float32)
    for layer, block in enumerate(blocks):
        weight = block.gate.weight.detach().to("cpu", torch.float32).numpy()
        logits = rows @ weight.T
        order = np.argsort(-logits, axis=1, kind="stable")[:, : info.top_k + 1]
        ranked = np.take_along_axis(logits, order, axis=1)
        clear = (ranked[:, :-1] - ranked[:, 1:] > _CLEAR * np.ptp(logits, axis=1, keepdims=True)).all(axis=1)
        chosen = remote.gate(layer, rows)
        if not np.array_equal(chosen[clear], order[clear, : info.top_k]):
            raise InvalidInput(
                f"model.layers[{layer}].mlp.gate",
                f"the gate that {remote.target} has",
                "one that chooses otherwise",
            )


def _block_class(torch: Any) -> Any:
    """Makes the block's class, a torch.nn.Module, once torch is there."""

    class ColibriMoeBlock(torch.nn.Module):  # type: ignore[misc]
        """Computes [batch, sequence, hidden] -> [batch, sequence, hidden] in the cluster."""

        def __init__(self, remote: RemoteMoe, layer: int, training: bool) -> None:
            super().__init__()
            self.layer = layer
            self.training = training
            self._remote = remote

        def forward(self, hidden_states: Any) -> Any:
            if hidden_states.requires_grad:
                raise InvalidInput(
                    "hidden_states",
                    "a tensor without gradients: experts in the cluster are for inference",
                    "one that requires them",
                )
            begun = time.monotonic()
            shape = hidden_states.shape
            rows = hidden_states.reshape(-1, shape[-1]).to("cpu", torch.float32).numpy()
            merged = torch.from_numpy(self._remote.forward(self.layer, rows))
            result = merged.reshape(shape).to(hidden_states.device, hidden_states.dtype)
            self._remote.count(self.layer, len(rows), time.monotonic() - begun)
            return result

        def extra_repr(self) -> str:
            return f"layer={self.layer}, target={self._remote.target}"

    return ColibriMoeBlock
