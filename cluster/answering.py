"""Whether a running worker still answers: a process that hangs gives no sign of it by itself."""

from __future__ import annotations

from collections.abc import Callable

import grpc

from colibri.cluster.life import WorkerLife
from colibri.deadline import Clock
from colibri.rpc.status import from_rpc_error
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.transport.options import channel_options
from colibri.v1 import expert_pb2, expert_pb2_grpc

#: Between two questions to a worker that has not answered.
_AGAIN_S = 0.1


def watch_answers(
    process: WorkerLife,
    target: str,
    poll_s: float,
    hung_after_s: float,
    on_status: Callable[[expert_pb2.StatusReply], None],
    clock: Clock,
    security: ChannelSecurity = PLAIN,
) -> str:
    """Returns when the worker has ended: by itself, with an empty text; or because it was killed for giving no
    status, with the reason. `on_status` gets each status.

    Only time that was spent waiting for an answer counts, not a pause of this process.
    """
    silent_s, pause_s = 0.0, poll_s
    last_error = ""
    with security.open(target, channel_options()) as channel:
        stub: expert_pb2_grpc.ExpertStub = expert_pb2_grpc.ExpertStub(channel)
        while not process.wait_exit(pause_s):
            asked = clock()
            try:
                reply = stub.Status(expert_pb2.StatusRequest(), timeout=poll_s, wait_for_ready=True)
            except grpc.RpcError as error:
                silent_s += min(clock() - asked, poll_s) + _AGAIN_S
                pause_s = _AGAIN_S
                last_error = from_rpc_error(error, f"worker {process.name}").message
            else:
                silent_s, pause_s = 0.0, poll_s
                on_status(reply)
            if silent_s >= hung_after_s and not process.ended:
                process.kill()
                process.wait_exit(poll_s)
                return f"gave no status for {silent_s:.0f} s and was killed ({last_error})"
    return ""
