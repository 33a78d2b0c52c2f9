"""The calls that keep a worker in a deployment: ask its status, have it load experts, have it drop them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import grpc

from colibri.cluster.experts.contents import Contents
from colibri.deadline import Deadline
from colibri.errors import Cancelled, WorkerLost
from colibri.grpc_options import channel_options
from colibri.placement import WorkerEndpoint
from colibri.rpc.diagnose import failure
from colibri.rpc.status import from_rpc_error
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.v1 import expert_pb2, expert_pb2_grpc

#: Hears of each expert that is in place.
LoadProgress = Callable[[expert_pb2.LoadProgress], None]
#: (worker, experts loaded, experts to load, bytes loaded)
WorkerProgress = Callable[[str, int, int, int], None]

STATUS_TIMEOUT_S = 5.0


class _Call(Protocol):
    def cancel(self) -> object: ...


class Cancellation:
    """Ends calls from another thread, both running and later ones. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: set[_Call] = set()
        self._cancelled = False

    @contextlib.contextmanager
    def covering(self, call: _Call) -> Iterator[None]:
        with self._lock:
            cancelled = self._cancelled
            self._calls.add(call)
        if cancelled:
            call.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._calls.discard(call)

    def cancel(self) -> None:
        with self._lock:
            self._cancelled = True
            calls = list(self._calls)
        for call in calls:
            call.cancel()


def ask_status(
    target: str,
    peer: str,
    timeout_s: float,
    *,
    security: ChannelSecurity = PLAIN,
    wait_for_ready: bool = False,
    experts: bool = False,
    seen: int = 0,
    wait_s: float = 0.0,
) -> expert_pb2.StatusReply:
    """Returns a worker's status. Raises the typed error of the failed call.

    peer: its name in errors.
    security: of the channel.
    wait_for_ready: it may still be starting, so a refused connection is retried.
    experts: include the ids of those it holds.
    seen, wait_s: the answer may wait this long while StatusReply.state is `seen`.
    """
    with _stub(target, security) as stub:
        try:
            request = expert_pb2.StatusRequest(experts=experts, seen=seen, wait_ms=int(1000 * wait_s))
            return stub.Status(request, timeout=timeout_s, wait_for_ready=wait_for_ready)
        except grpc.RpcError as error:
            if wait_for_ready:  # nobody serves by it yet: a moment's look at the reason delays nothing
                raise failure(error, peer, target, security, waited=True) from error
            raise from_rpc_error(error, peer) from error


def load_experts(
    endpoint: WorkerEndpoint,
    experts: Sequence[tuple[int, int]],
    epoch: int,
    deadline: Deadline,
    progress: LoadProgress,
    *,
    yielding: bool = False,
    cancellation: Cancellation | None = None,
    contents: Contents | None = None,
) -> None:
    """Has a worker load experts.

    experts: (layer, expert) ids.
    yielding: load beside requests, at a low CPU priority.
    contents: the deployment's experts, compared as each is loaded.

    Raises the typed error of a failed call, naming the worker; DeadlineExpired if it took too long; Cancelled;
    NumericsMismatch for an expert with another content.
    """
    request = expert_pb2.LoadRequest(epoch=epoch, experts=_ids(experts), yielding=yielding)
    peer = f"worker {endpoint.name}"
    done = False
    with _stub(endpoint.target, endpoint.security) as stub:
        try:
            # Not waiting for ready: the worker serves by now, and one that has died must not be waited for.
            call = stub.Load(request, timeout=deadline.remaining())
            with (cancellation or Cancellation()).covering(call):
                for message in call:
                    if contents is not None and 0 < message.experts_done <= len(experts):
                        contents.hear(
                            endpoint.name, {experts[message.experts_done - 1]: message.expert_digest}
                        )
                    progress(message)
                    done = message.done
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.CANCELLED:
                raise Cancelled(f"{peer}: the load was called off", peer=endpoint.name) from error
            raise from_rpc_error(error, peer) from error
    if not done:
        raise WorkerLost(f"{peer} ended Load without saying that it is done", peer=endpoint.name)


def retire_experts(
    endpoint: WorkerEndpoint, epochs_below: int, experts: Iterable[tuple[int, int]], timeout_s: float
) -> int:
    """Has a worker refuse epochs below `epochs_below` (0: as before) and drop `experts`. Returns the bytes freed.

    Raises the typed error of a failed call.
    """
    request = expert_pb2.RetireRequest(epochs_below=epochs_below, experts=_ids(experts))
    with _stub(endpoint.target, endpoint.security) as stub:
        try:
            return int(stub.Retire(request, timeout=timeout_s).bytes_freed)
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"worker {endpoint.name}") from error


def end_worker(endpoint: WorkerEndpoint, timeout_s: float, *, at_once: bool) -> None:
    """Has this incarnation of a worker end its process. Raises the typed error of a failed call.

    at_once: do not wait for what is in flight.
    """
    request = expert_pb2.EndRequest(incarnation=endpoint.incarnation, at_once=at_once)
    with _stub(endpoint.target, endpoint.security) as stub:
        try:
            stub.End(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"worker {endpoint.name}") from error


def serve_epochs(endpoint: WorkerEndpoint, epochs_from: int, timeout_s: float) -> None:
    """Has a worker serve epochs from `epochs_from` on again, although they were retired there. Raises the typed error
    of a failed call.
    """
    request = expert_pb2.RetireRequest(epochs_from=epochs_from)
    with _stub(endpoint.target, endpoint.security) as stub:
        try:
            stub.Retire(request, timeout=timeout_s)
        except grpc.RpcError as error:
            raise from_rpc_error(error, f"worker {endpoint.name}") from error


def held_experts(
    endpoint: WorkerEndpoint, timeout_s: float, contents: Contents | None = None
) -> frozenset[tuple[int, int]]:
    """Returns the experts that the worker says it holds.

    contents: as for load_experts.
    """
    reply = ask_status(
        endpoint.target, f"worker {endpoint.name}", timeout_s, security=endpoint.security, experts=True
    )
    if contents is not None:
        contents.hear(endpoint.name, told_contents(reply))
    return frozenset((item.layer, item.expert) for item in reply.held)


def told_contents(reply: expert_pb2.StatusReply) -> dict[tuple[int, int], bytes]:
    """Returns the digests in a status that was asked for with `experts`; none from a worker that does not know them."""
    if len(reply.held_digests) != len(reply.held):
        return {}
    held = [(item.layer, item.expert) for item in reply.held]
    return dict(zip(held, reply.held_digests, strict=True))


def _ids(experts: Iterable[tuple[int, int]]) -> list[expert_pb2.ExpertId]:
    return [expert_pb2.ExpertId(layer=layer, expert=expert) for layer, expert in experts]


@contextlib.contextmanager
def _stub(target: str, security: ChannelSecurity) -> Iterator[expert_pb2_grpc.ExpertStub]:
    with security.open(target, channel_options()) as channel:
        yield expert_pb2_grpc.ExpertStub(channel)
