"""The service Operator as a chaos run uses it: who works, and changes of placement, every call bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import grpc

from colibri.errors import ColibriError, WorkerLost
from colibri.rpc.status import from_rpc_error
from colibri.transport.options import channel_options
from colibri.v1 import operator_pb2 as pb
from colibri.v1 import operator_pb2_grpc

STATUS_TIMEOUT_S = 5.0
#: States of a worker that is not meant to serve.
_OUT = frozenset({"drained", "stopped"})
#: What a router says of a worker that it does not use.
_UNUSED = frozenset({"lost", "ejected", "probing"})


class Operator:
    """One channel to a serving deployment."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._channel = grpc.insecure_channel(target, options=channel_options())
        self._stub: operator_pb2_grpc.OperatorStub = operator_pb2_grpc.OperatorStub(self._channel)

    def status(self, *, experts: bool = False, timeout_s: float = STATUS_TIMEOUT_S) -> pb.ClusterStatusReply:
        """Raises ColibriError."""
        try:
            return self._stub.ClusterStatus(pb.ClusterStatusRequest(experts=experts), timeout=timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None

    def scale(self, workers: int, timeout_s: float) -> pb.ChangeProgress:
        request = pb.ScaleRequest(workers=workers, timeout_s=timeout_s)
        return self._change(lambda: self._stub.Scale(request, timeout=timeout_s + 5.0))

    def drain(self, worker: str, undo: bool, timeout_s: float) -> pb.ChangeProgress:
        request = pb.DrainRequest(worker=worker, undo=undo, timeout_s=timeout_s)
        return self._change(lambda: self._stub.Drain(request, timeout=timeout_s + 5.0))

    def move(self, layer: int, expert: int, to: str, from_worker: str, timeout_s: float) -> pb.ChangeProgress:
        request = pb.MoveRequest(
            layer=layer, expert=expert, to=to, timeout_s=timeout_s, **{"from": from_worker}
        )
        return self._change(lambda: self._stub.Move(request, timeout=timeout_s + 5.0))

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _change(self, call: Callable[[], Iterable[pb.ChangeProgress]]) -> pb.ChangeProgress:
        """The last message of a change. Raises ColibriError for one that was taken back."""
        last: pb.ChangeProgress | None = None
        try:
            for message in call():
                last = message
        except grpc.RpcError as error:
            raise from_rpc_error(error, self.target) from None
        if last is None or not last.done:
            raise WorkerLost(f"{self.target} ended a change without saying that it is done", peer=self.target)
        return last


def serving(status: pb.ClusterStatusReply) -> list[pb.WorkerInfo]:
    """Workers that serve, by name."""
    return sorted((w for w in status.workers if w.state == "serving"), key=lambda worker: worker.name)


def whats_missing(status: pb.ClusterStatusReply) -> str:
    """Why the deployment is not whole; empty where every worker that should serve does, the router uses it,
    and no change is under way."""
    if status.change:
        return f"a change is under way: {status.change}"
    for worker in status.workers:
        if worker.state in _OUT:
            continue
        if worker.state != "serving":
            return f"worker {worker.name} is {worker.state}"
        if worker.health in _UNUSED:
            return f"worker {worker.name} serves, the router has it as {worker.health}"
    return ""


def find(status: pb.ClusterStatusReply, name: str) -> pb.WorkerInfo:
    """Raises ColibriError for a name that nobody has."""
    for worker in status.workers:
        if worker.name == name:
            return worker
    names = ", ".join(worker.name for worker in status.workers)
    raise ColibriError(f"worker: expected one of {names or 'none'}, got {name}")
