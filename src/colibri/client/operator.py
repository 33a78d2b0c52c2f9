"""Call the service Operator: show who works, and change the placement while requests run. Every call is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

import grpc
from google.protobuf.message import Message

from colibri.client.channel import Server
from colibri.errors import WorkerLost
from colibri.grpc_options import channel_options
from colibri.security.channel import ChannelSecurity
from colibri.v1 import operator_pb2 as pb
from colibri.v1 import operator_pb2_grpc

STATUS_TIMEOUT_S = 5.0
#: What a call may take beyond the bound that the server keeps itself.
_SLACK_S = 5.0

OnProgress = Callable[[pb.ChangeProgress], None]


class Operator:
    """One channel to a serving deployment. All methods raise ColibriError, as the server does; it undoes a change that
    fails.

    target: "unix:/path" or "host:port".
    on_progress: called with each step of a change.
    security: of the channel, and the token of its calls.
    """

    def __init__(
        self,
        target: str,
        on_progress: OnProgress = lambda step: None,
        security: ChannelSecurity | None = None,
    ) -> None:
        self._server = Server.of(target, security)
        self.target = self._server.target
        self._on_progress = on_progress
        self._channel = self._server.security.open(self.target, channel_options())
        self._stub: operator_pb2_grpc.OperatorStub = operator_pb2_grpc.OperatorStub(self._channel)

    def status(
        self, *, experts: bool = False, loads: bool = False, timeout_s: float = STATUS_TIMEOUT_S
    ) -> pb.ClusterStatusReply:
        """Describes the deployment.

        experts: include the ids that each worker holds.
        loads: include how many rows chose each expert.
        """
        try:
            return self._stub.ClusterStatus(
                pb.ClusterStatusRequest(experts=experts, loads=loads),
                timeout=timeout_s,
                metadata=self._server.metadata(),
            )
        except grpc.RpcError as error:
            raise self._server.error(error) from None

    def scale(self, workers: int, timeout_s: float) -> pb.ChangeProgress:
        request = pb.ScaleRequest(workers=workers, timeout_s=timeout_s)
        return self._change(self._stub.Scale, request, timeout_s)

    def drain(self, worker: str, undo: bool, timeout_s: float, host: str = "") -> pb.ChangeProgress:
        """Drains a worker, or all workers of a host; `undo` brings them back.

        worker: its name; empty if `host` is given.
        """
        request = pb.DrainRequest(worker=worker, undo=undo, timeout_s=timeout_s, host=host)
        return self._change(self._stub.Drain, request, timeout_s)

    def move(self, layer: int, expert: int, to: str, from_worker: str, timeout_s: float) -> pb.ChangeProgress:
        """Moves an expert. `to` or `from_worker` may be empty: then no holder is added, or none is dropped."""
        request = pb.MoveRequest(
            layer=layer, expert=expert, to=to, timeout_s=timeout_s, **{"from": from_worker}
        )
        return self._change(self._stub.Move, request, timeout_s)

    def place(self, dry_run: bool, timeout_s: float) -> pb.ChangeProgress:
        """Plans the whole placement anew, and moves experts there unless `dry_run`.

        The plan comes with the first step of progress; in a dry run that is also the last.
        """
        request = pb.PlaceRequest(dry_run=dry_run, timeout_s=timeout_s)
        return self._change(self._stub.Place, request, timeout_s)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _change(
        self, method: Callable[..., Iterable[pb.ChangeProgress]], request: Message, timeout_s: float
    ) -> pb.ChangeProgress:
        """Follows a change and returns its last message."""
        last: pb.ChangeProgress | None = None
        call = method(request, timeout=timeout_s + _SLACK_S, metadata=self._server.metadata())
        try:
            for last in call:
                self._on_progress(last)
        except grpc.RpcError as error:
            raise self._server.error(error) from None
        if last is None or not last.done:
            raise WorkerLost(f"{self.target} ended a change without saying that it is done", peer=self.target)
        return last
