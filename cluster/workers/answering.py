"""Watch whether a running worker still answers, and what it says: a process that hangs gives no sign of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import grpc

from colibri.cluster.workers.life import WorkerLife
from colibri.deadline import Clock
from colibri.grpc_options import channel_options
from colibri.rpc.status import from_rpc_error
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.v1 import expert_pb2, expert_pb2_grpc

#: Between two questions to a worker that has not answered.
_AGAIN_S = 0.1
#: Between two questions to one that tells its changes as they come: so many changes in a row cost little.
_NEWS_PAUSE_S = 0.05
#: An end of which nobody told is noticed within so long.
_LOOK_S = 1.0
#: As the worker bounds StatusRequest.wait_ms.
_MOST_WAIT_S = 10.0


def watch_answers(
    process: WorkerLife,
    target: str,
    poll_s: float,
    hung_after_s: float,
    on_status: Callable[[expert_pb2.StatusReply], str],
    clock: Clock,
    security: ChannelSecurity = PLAIN,
    woken: threading.Event | None = None,
) -> str:
    """Watches a worker until it has ended. Returns an empty text if it ended by itself; else the reason why it was
    killed: it gave no status, or `on_status` refused one.

    on_status: gets each status, with the experts held: one every `poll_s` seconds, and one as soon as the worker's
        state changes. Returns the reason to kill the worker, or nothing.
    woken: set by whoever learns first that the process has ended.

    Only time spent waiting for an answer counts, not a pause of this process.
    """
    woken = woken or threading.Event()
    silent_s, pause_s, wait_s, seen = 0.0, 0.0, 0.0, 0
    last_error = ""
    with security.open(target, channel_options()) as channel:
        stub: expert_pb2_grpc.ExpertStub = expert_pb2_grpc.ExpertStub(channel)
        while not process.wait_exit(pause_s):
            asked = clock()
            request = expert_pb2.StatusRequest(experts=True, seen=seen, wait_ms=int(1000 * wait_s))
            reply, error = _answer(stub, request, poll_s + wait_s, process, woken)
            if reply is not None:
                silent_s, seen = 0.0, reply.state
                # A build that does not count its changes answers at once.
                pause_s, wait_s = (_NEWS_PAUSE_S, min(poll_s, _MOST_WAIT_S)) if seen else (poll_s, 0.0)
                against = on_status(reply)
                if against and not process.ended:
                    process.kill()
                    process.wait_exit(poll_s)
                    return f"was ended, since its state was wrong: {against}"
            elif error is not None:
                silent_s += min(max(0.0, clock() - asked - wait_s), poll_s) + _AGAIN_S
                pause_s, wait_s = _AGAIN_S, 0.0
                last_error = from_rpc_error(error, f"worker {process.name}").message
            if silent_s >= hung_after_s and not process.ended:
                process.kill()
                process.wait_exit(poll_s)
                return f"gave no status for {silent_s:.0f} s and was killed ({last_error})"
    return ""


def _answer(
    stub: expert_pb2_grpc.ExpertStub,
    request: expert_pb2.StatusRequest,
    timeout_s: float,
    process: WorkerLife,
    woken: threading.Event,
) -> tuple[expert_pb2.StatusReply | None, grpc.RpcError | None]:
    """Returns the answer, or the error in its place; neither if the process has ended meanwhile."""
    woken.clear()
    call = stub.Status.future(request, timeout=timeout_s, wait_for_ready=True)
    call.add_done_callback(lambda done: woken.set())
    while not call.done():
        if process.ended:
            call.cancel()
            return None, None
        woken.wait(_LOOK_S)
    try:
        return call.result(), None
    except grpc.RpcError as error:
        return None, error
    except grpc.FutureCancelledError:
        return None, None
