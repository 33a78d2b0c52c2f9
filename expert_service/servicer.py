"""The gRPC service Expert: control calls. The data plane is in stream.py."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from colibri.errors import Busy, InvalidInput, NumericsMismatch, ShuttingDown
from colibri.expert_service.inbox import Inbox
from colibri.expert_service.low_priority import iterate_lowered
from colibri.expert_service.pinning import Placed, misplaced, read_placement
from colibri.expert_service.process_facts import count_threads, open_fds
from colibri.expert_service.ring_inbox import RingInbox, write_reply
from colibri.expert_service.state_news import StateNews
from colibri.expert_service.store import ExpertId, WeightStore
from colibri.expert_service.stream import ExchangeStream, Worker
from colibri.grpc_options import CONTROL_MESSAGE_BYTES
from colibri.kernels.api import Backend
from colibri.numerics_homes import OPTION
from colibri.rpc.reading import Size
from colibri.rpc.server import Service
from colibri.security.roles import Scope
from colibri.transport._shared_ring import SharedRing
from colibri.transport.grpc_stream import EXCHANGE_METHOD
from colibri.transport.host import host_id
from colibri.transport.shared_memory import LAYOUT, TOKEN_BYTES, ring_bytes
from colibri.v1 import expert_pb2
from colibri.version import __version__
from colibri.wire.protocol import PROTOCOL_MAX, PROTOCOL_MIN

_log = logging.getLogger(__name__)

SERVICE_NAME = "colibri.v1.Expert"
_DRAIN_POLL_S = 0.01
#: From the answer of End to the end: it must reach the caller first.
_ANSWER_S = 0.05
_MOST_WAIT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Identity:
    """What a handshake compares and Status reports.

    numa_node: -1: none asked for.
    crossing: what it costs that CPUs and memory lie on different nodes; empty: they do not.
    shares_memory: offers shared memory to routers of its host.
    pack_hash: empty if weights come from the checkpoint itself.
    """

    model_hash: str
    expert_numerics_id: str
    isa: str
    compute_threads: int
    numa_node: int
    oversubscribed: bool
    crossing: str = ""
    shares_memory: bool = True
    pack_hash: str = ""


class ExpertServicer:
    """Control calls of one worker. Raises typed errors; colibri.rpc.server turns them into statuses."""

    def __init__(
        self,
        worker: Worker,
        identity: Identity,
        store: WeightStore,
        max_streams: int,
        *,
        packer: Backend | None = None,
        warm_up: Callable[[ExpertId], None] = lambda key: None,
    ) -> None:
        """packer: packs experts beside running requests, on the calling thread alone; None: the store's own backend
            does.
        warm_up: called with each expert that has just been loaded.
        """
        self._worker = worker
        self._identity = identity
        self._store = store
        self._max_streams = max_streams
        self._packer = packer
        self._warm_up = warm_up
        #: Open streams, the oldest first, and what ends their calls.
        self._streams: dict[ExchangeStream, Callable[[], object]] = {}
        self._lock = threading.Lock()
        #: When a coordinator last called, by the worker's clock.
        self.heard = worker.clock()
        self._news = StateNews()

    def service(self) -> Service:
        """For colibri.rpc.server.build_server."""
        lists_of_experts = dict.fromkeys(("Load", "Retire"), Size(CONTROL_MESSAGE_BYTES))
        return Service(SERVICE_NAME, self._register, Scope.PLANE, frozenset({"Exchange"}), lists_of_experts)

    def drain(self, grace_s: float) -> bool:
        """Refuses new requests and waits for those in flight. Returns whether all were answered within `grace_s`
        seconds.
        """
        self._worker.draining.set()
        self._news.end()
        self._worker.queue.wake_all()
        end = self._worker.clock() + grace_s
        while self._busy():
            if self._worker.clock() >= end:
                return False
            time.sleep(_DRAIN_POLL_S)
        return True

    def handshake(
        self, request: expert_pb2.HandshakeRequest, context: grpc.ServicerContext
    ) -> expert_pb2.HandshakeReply:
        worker, identity = self._worker, self._identity
        low, high = max(request.protocol_min, PROTOCOL_MIN), min(request.protocol_max, PROTOCOL_MAX)
        if low > high:
            raise NumericsMismatch(
                f"protocol: router {request.router_name!r} speaks {request.protocol_min} to"
                f" {request.protocol_max}, worker {worker.name} {PROTOCOL_MIN} to {PROTOCOL_MAX}",
                peer=worker.name,
            )
        for field, asked, own in (
            ("model_hash", request.model_hash, identity.model_hash),
            ("pack_hash", request.pack_hash, identity.pack_hash),
            ("expert_numerics_id", request.expert_numerics_id, identity.expert_numerics_id),
        ):
            if asked != own:
                text = (
                    f"{field}: router {request.router_name!r} has {asked!r}, worker {worker.name} has {own!r}"
                )
                if field == "expert_numerics_id":
                    text += f"; only with {OPTION} of the router do such workers serve together"
                raise NumericsMismatch(text, peer=worker.name)
        return expert_pb2.HandshakeReply(
            protocol=high,
            worker=worker.name,
            incarnation=worker.incarnation,
            model_hash=identity.model_hash,
            pack_hash=identity.pack_hash,
            expert_numerics_id=identity.expert_numerics_id,
            build_version=__version__,
            max_message_bytes=worker.limits.max_request_bytes,
            max_rows=worker.limits.max_rows,
            max_queued=worker.max_requests,
            host=host_id() if identity.shares_memory else "",
        )

    def load(
        self, request: expert_pb2.LoadRequest, context: grpc.ServicerContext
    ) -> Iterator[expert_pb2.LoadProgress]:
        self._hear()
        keys = _expert_ids(request.experts)
        self._store.check(keys)
        self._worker.epochs.check(request.epoch)
        if self._worker.faults is not None:
            self._worker.faults.at_load()
        self._worker.epochs.name(request.epoch)
        steps = self._store.load_steps(keys, self._packer if request.yielding else None)
        try:
            for step in iterate_lowered(steps) if request.yielding else steps:
                self._hear()
                done = step.experts_done == step.experts_total
                if done and keys:
                    self._warm_up(keys[-1])
                    self._look_where_pages_lie()
                yield expert_pb2.LoadProgress(
                    experts_done=step.experts_done,
                    experts_total=step.experts_total,
                    bytes_done=step.bytes_done,
                    done=done,
                    read_seconds=step.read_seconds if done else 0.0,
                    pack_seconds=step.pack_seconds if done else 0.0,
                    bytes_fetched=step.bytes_fetched,
                    expert_digest=step.digest,
                )
        finally:
            self._news.changed()

    def _look_where_pages_lie(self) -> None:
        placed = self._placed()
        astray = misplaced(placed.pages_by_node, self._identity.numa_node)
        if astray:
            _log.warning("%s: %s", self._worker.name, astray)

    def _placed(self) -> Placed:
        return read_placement([expert.data for expert in self._store.packed()])

    def retire(
        self, request: expert_pb2.RetireRequest, context: grpc.ServicerContext
    ) -> expert_pb2.RetireReply:
        self._hear()
        keys = _expert_ids(request.experts)
        self._store.check(keys)
        self._worker.epochs.check_retire(request.epochs_below)
        self._worker.epochs.retire_below(request.epochs_below)
        self._worker.epochs.serve_from(request.epochs_from)
        freed = self._store.unload(keys)
        self._news.changed()
        return expert_pb2.RetireReply(bytes_freed=freed)

    def status(
        self, request: expert_pb2.StatusRequest, context: grpc.ServicerContext
    ) -> expert_pb2.StatusReply:
        self._hear()
        if request.wait_ms > _MOST_WAIT_MS:
            raise InvalidInput("wait_ms", f"at most {_MOST_WAIT_MS}", request.wait_ms)
        if request.wait_ms and context.add_callback(self._news.look):
            self._news.wait(request.seen, request.wait_ms / 1000, context.is_active)
        self._hear()
        state = self._news.number  # before all the rest, so that a change meanwhile is seen by the next call
        worker, identity, counts = self._worker, self._identity, self._worker.counters.counts
        oldest = worker.queue.oldest()
        placed = self._placed()
        held = self._store.digests() if request.experts else []
        return expert_pb2.StatusReply(
            worker=worker.name,
            incarnation=worker.incarnation,
            pid=placed.pid,
            isa=identity.isa,
            cpus_allowed=placed.cpus,
            compute_threads=identity.compute_threads,
            numa_node=identity.numa_node,
            weight_pages_by_node=placed.pages_by_node,
            oversubscribed=identity.oversubscribed,
            crossing=identity.crossing,
            experts_loaded=len(self._store),
            weight_bytes=self._store.bytes,
            epoch_min=worker.epochs.oldest,
            requests_done=counts.done,
            requests_refused=counts.refused,
            requests_expired=counts.expired,
            requests_cancelled=counts.cancelled,
            rows_done=counts.rows,
            queued=worker.queue.waiting,
            open_fds=open_fds(),
            threads=count_threads(),
            expert_numerics_id=identity.expert_numerics_id,
            build_version=__version__,
            bytes_fetched=self._store.bytes_fetched,
            held=[expert_pb2.ExpertId(layer=layer, expert=expert) for (layer, expert), _ in held],
            held_digests=[digest for _, digest in held],
            oldest_queued_us=0 if oldest is None else max(0, round((worker.clock() - oldest) * 1e6)),
            state=state,
            model_hash=identity.model_hash,
            pack_hash=identity.pack_hash,
        )

    def end(self, request: expert_pb2.EndRequest, context: grpc.ServicerContext) -> expert_pb2.EndReply:
        name, own = self._worker.name, self._worker.incarnation
        if request.incarnation != own:
            raise InvalidInput("incarnation", f"{own}, of this life of {name}", request.incarnation)
        _log.info("%s: told to end%s", name, " at once" if request.at_once else "")
        act = _end_at_once if request.at_once else _end_in_order
        threading.Timer(_ANSWER_S, act).start()
        return expert_pb2.EndReply()

    def _hear(self) -> None:
        self.heard = self._worker.clock()

    def _register(self, server: grpc.Server) -> None:
        messages = expert_pb2
        control: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Handshake": grpc.unary_unary_rpc_method_handler(
                self.handshake,
                messages.HandshakeRequest.FromString,
                messages.HandshakeReply.SerializeToString,
            ),
            "Attach": grpc.unary_stream_rpc_method_handler(
                self.attach, messages.AttachRequest.FromString, messages.AttachReply.SerializeToString
            ),
            "Load": grpc.unary_stream_rpc_method_handler(
                self.load, messages.LoadRequest.FromString, messages.LoadProgress.SerializeToString
            ),
            "Retire": grpc.unary_unary_rpc_method_handler(
                self.retire, messages.RetireRequest.FromString, messages.RetireReply.SerializeToString
            ),
            "Status": grpc.unary_unary_rpc_method_handler(
                self.status, messages.StatusRequest.FromString, messages.StatusReply.SerializeToString
            ),
            "End": grpc.unary_unary_rpc_method_handler(
                self.end, messages.EndRequest.FromString, messages.EndReply.SerializeToString
            ),
        }
        server.add_generic_rpc_handlers(
            (_Exchange(self._open_stream), grpc.method_handlers_generic_handler(SERVICE_NAME, control))
        )

    def _open_stream(self) -> grpc.RpcMethodHandler[bytes, bytes]:
        worker = self._worker
        inbox = Inbox(max(worker.max_bytes, worker.limits.max_frame_bytes), worker.clock)
        stream = ExchangeStream(worker, inbox)

        def exchange(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            with self._entered(stream, context.cancel):
                inbox.attach(requests)
                yield from stream.run(context)

        return grpc.stream_stream_rpc_method_handler(exchange, inbox.arrived, None)

    def attach(
        self, request: expert_pb2.AttachRequest, context: grpc.ServicerContext
    ) -> Iterator[expert_pb2.AttachReply]:
        worker = self._worker
        if not self._identity.shares_memory:
            raise InvalidInput("host", "no attachment: this worker shares no memory", request.host or "none")
        if not request.host or request.host != host_id():
            raise InvalidInput("host", "the host of this worker", request.host or "none")
        if request.layout != LAYOUT:
            raise InvalidInput("layout", str(LAYOUT), request.layout)
        token = secrets.token_bytes(TOKEN_BYTES)
        ring = SharedRing.create(ring_bytes(worker.limits.max_frame_bytes), token)
        stream = ExchangeStream(worker, RingInbox(ring, worker.clock))
        with (
            self._entered(stream, context.cancel),
            contextlib.closing(ring),
            contextlib.suppress(ConnectionError),
        ):
            yield expert_pb2.AttachReply(pid=os.getpid(), fd=ring.fd, token=token)
            for frame in stream.run(context):
                write_reply(ring, frame, worker.name)

    @contextlib.contextmanager
    def _entered(self, stream: ExchangeStream, cut: Callable[[], object]) -> Iterator[None]:
        """Registers a stream. If all streams are taken, ends the oldest one that never carried a frame."""
        name = self._worker.name
        cut_silent: Callable[[], object] | None = None
        with self._lock:
            if self._worker.draining.is_set():
                raise ShuttingDown(f"{name} is shutting down", peer=name)
            if len(self._streams) >= self._max_streams:
                silent = next((each for each in self._streams if not each.heard), None)
                if silent is None:
                    raise Busy(
                        f"{name}: {self._max_streams} streams are open, the limit of this worker",
                        peer=name,
                        retry_after_s=1.0,
                    )
                cut_silent = self._streams.pop(silent)
            self._streams[stream] = cut
        if cut_silent is not None:
            cut_silent()
        try:
            yield
        finally:
            with self._lock:
                self._streams.pop(stream, None)

    def _busy(self) -> bool:
        with self._lock:
            return any(stream.busy for stream in self._streams)


class _Exchange(grpc.GenericRpcHandler):
    """A handler per call, so that the deserialiser knows its stream."""

    def __init__(self, open_stream: Callable[[], grpc.RpcMethodHandler[bytes, bytes]]) -> None:
        self._open_stream = open_stream

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._open_stream() if handler_call_details.method == EXCHANGE_METHOD else None


def _end_in_order() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _end_at_once() -> None:
    os._exit(128 + signal.SIGKILL)


def _expert_ids(experts: Iterable[expert_pb2.ExpertId]) -> list[ExpertId]:
    return [(item.layer, item.expert) for item in experts]
