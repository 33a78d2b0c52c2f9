"""The two calls a launcher makes to a worker that has just started: load these experts, and say how you
are."""

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

_STATUS_TIMEOUT_S = 5.0


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
    with grpc.insecure_channel(endpoint.target, options=channel_options()) as channel:
        stub: expert_pb2_grpc.ExpertStub = expert_pb2_grpc.ExpertStub(channel)
        try:
            done = False
            for message in stub.Load(request, timeout=deadline.remaining(), wait_for_ready=True):
                progress(message.experts_done, message.experts_total, message.bytes_done)
                done = message.done
            if not done:
                raise WorkerLost(
                    f"worker {endpoint.name} ended Load without saying that it is done", peer=endpoint.name
                )
            return stub.Status(expert_pb2.StatusRequest(), timeout=deadline.bound(_STATUS_TIMEOUT_S))
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"worker {endpoint.name}") from error
