"""The calls that keep a worker in a deployment: how are you, and load these experts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import grpc

from colibri.deadline import Deadline
from colibri.errors import WorkerLost
from colibri.placement import WorkerEndpoint
from colibri.rpc.status import from_rpc_error
from colibri.transport.options import channel_options
from colibri.v1 import expert_pb2, expert_pb2_grpc

#: (experts loaded, experts to load, bytes loaded)
LoadProgress = Callable[[int, int, int], None]
#: (worker, experts loaded, experts to load, bytes loaded)
WorkerProgress = Callable[[str, int, int, int], None]

_STATUS_TIMEOUT_S = 5.0


def ask_status(
    target: str, peer: str, timeout_s: float, *, wait_for_ready: bool = False
) -> expert_pb2.StatusReply:
    """A worker's status. `peer` names it in errors; `wait_for_ready`: it may still be starting, so that a
    refused connection is tried again. Raises the typed error of the failed call."""
    with grpc.insecure_channel(target, options=channel_options()) as channel:
        stub: expert_pb2_grpc.ExpertStub = expert_pb2_grpc.ExpertStub(channel)
        try:
            return stub.Status(expert_pb2.StatusRequest(), timeout=timeout_s, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer) from error


def load_experts(
    endpoint: WorkerEndpoint,
    experts: Sequence[tuple[int, int]],
    epoch: int,
    deadline: Deadline,
    progress: LoadProgress,
) -> expert_pb2.StatusReply:
    """Have a worker load `experts` ((layer, expert) ids) and return its status then.

    Raises the typed error of a failed call, naming the worker; DeadlineExpired when it took too long.
    """
    request = expert_pb2.LoadRequest(
        epoch=epoch,
        experts=[expert_pb2.ExpertId(layer=layer, expert=expert) for layer, expert in experts],
    )
    peer = f"worker {endpoint.name}"
    with grpc.insecure_channel(endpoint.target, options=channel_options()) as channel:
        stub: expert_pb2_grpc.ExpertStub = expert_pb2_grpc.ExpertStub(channel)
        try:
            done = False
            # Not waiting for ready: the worker serves by now, and one that has died must not be waited for.
            for message in stub.Load(request, timeout=deadline.remaining()):
                progress(message.experts_done, message.experts_total, message.bytes_done)
                done = message.done
        except grpc.RpcError as error:
            raise from_rpc_error(error, peer) from error
    if not done:
        raise WorkerLost(f"{peer} ended Load without saying that it is done", peer=endpoint.name)
    return ask_status(endpoint.target, peer, deadline.bound(_STATUS_TIMEOUT_S))
