"""RemoteExecutor: the dispatches of a layer over the workers' streams.

Every message is written before any answer is read. Messages carry (correlation id, attempt), and an answer
counts for one attempt once: whatever sends a dispatch again, elsewhere, has its place between `run` and the
connections.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, DeadlineExpired, InvalidInput, WorkerLost
from colibri.kernels.api import Array
from colibri.placement import Directory, Membership
from colibri.router_service.connection import Connection, Message
from colibri.router_service.connections import Connections, connector
from colibri.router_service.executor import PartResult, rows_of
from colibri.router_service.handshake import RouterIdentity
from colibri.router_service.plan_types import Dispatch, LayerPlan
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.replies import outcome
from colibri.router_service.stats import (
    ExchangeTimes,
    HealthState,
    Recorder,
    RoutingStats,
    WorkerHealth,
)
from colibri.transport.link import LinkKind
from colibri.v1 import expert_pb2
from colibri.wire.header import Header
from colibri.wire.limits import FrameLimits

#: Longest wait for a worker's answer without a deadline, seconds.
WAIT_S = 30.0
#: Longest wait for a connection and its handshake, seconds.
CONNECT_S = 5.0
_WATCH_S = 0.2


@dataclass(frozen=True, slots=True)
class _Sent:
    connection: Connection
    message: Message


class RemoteExecutor:
    """An ExpertExecutor (colibri.router_service.executor) over gRPC workers.

    A thread follows the directory: it ends connections to workers that are gone, so that whoever waits for
    them fails at once, and connects to new ones before they are needed.
    """

    def __init__(
        self,
        identity: RouterIdentity,
        limits: FrameLimits,
        directory: Directory,
        *,
        link: LinkKind = LinkKind.AUTO,
        wait_s: float = WAIT_S,
        connect_s: float = CONNECT_S,
        policy: FailoverPolicy | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._limits = limits
        self._directory = directory
        self._wait_s = wait_s
        self._connect_s = connect_s
        self.policy = policy or FailoverPolicy()
        self._clock = clock
        self._ids = itertools.count(1)
        self._times = Recorder(ExchangeTimes())
        connect = connector(identity, limits, lambda: self._times.add(ExchangeTimes(late_replies=1)), link)
        self._connections = Connections(connect, connect_s, clock)
        self._closing = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="colibri-directory", daemon=True)
        self._watcher.start()

    @property
    def max_rows(self) -> int:
        return self._limits.max_rows

    def connect(self) -> Mapping[str, ColibriError]:
        """Connects to every worker alive. Returns the errors by worker: empty when all shook hands."""
        return self._connect_all(self._directory.current())

    def run(
        self,
        layer: int,
        x: Array,
        plan: LayerPlan,
        membership: Membership,
        deadline: Deadline,
        priority: int,
    ) -> list[PartResult | ColibriError]:
        """See ExpertExecutor.run."""
        start = time.perf_counter()
        row_bytes = x.itemsize * x.shape[1]
        if row_bytes != self._limits.row_bytes or not x.flags.c_contiguous:
            expected = f"C-contiguous rows of {self._limits.row_bytes} bytes"
            raise InvalidInput("x", expected, f"{row_bytes} bytes, strides {x.strides}")
        times = ExchangeTimes(1, len(plan.dispatches))
        sent: list[_Sent | ColibriError] = []
        try:
            for dispatch in plan.dispatches:
                try:
                    sent.append(self._send(layer, x, dispatch, membership, deadline, priority))
                    times.bytes_sent += len(dispatch.rows) * row_bytes
                except ColibriError as error:
                    sent.append(error)
            written = time.perf_counter()
            results = [self._receive(item, deadline, times) for item in sent]
        except BaseException:
            for item in sent:
                if isinstance(item, _Sent) and not item.message.done:
                    item.connection.abandon(item.message)
            raise
        times.write_s = written - start
        times.wait_s = time.perf_counter() - written
        self._times.add(times)
        return results

    def times(self) -> ExchangeTimes:
        return self._times.snapshot()

    def routing(self) -> RoutingStats:
        """What the router did about its workers, since the start."""
        times = self._times.snapshot()
        return RoutingStats(
            exchanges=times.exchanges, messages=times.messages, late_replies=times.late_replies
        )

    def workers(self) -> Mapping[str, WorkerHealth]:
        """Each worker of the placement, and each alive, as the router sees it."""
        membership = self._directory.current()
        found = {}
        for name in {*membership.placement.workers, *membership.endpoints}:
            connection = self._connections.present(name)
            endpoint = membership.endpoints.get(name)
            if connection is None:
                state = HealthState.UNKNOWN
            else:
                state = HealthState.LOST if connection.lost else HealthState.HEALTHY
            link = connection.link_kind.value if connection is not None and not connection.lost else ""
            found[name] = WorkerHealth(state, endpoint.incarnation if endpoint else 0, link, 0.0, 0.0, 0)
        return found

    def close(self) -> None:
        self._closing.set()
        self._connections.close()
        if threading.current_thread() is not self._watcher:
            self._watcher.join(self._connect_s + 1.0)

    def _send(
        self,
        layer: int,
        x: Array,
        dispatch: Dispatch,
        membership: Membership,
        deadline: Deadline,
        priority: int,
    ) -> _Sent:
        placement = membership.placement
        name = placement.workers[dispatch.worker]
        connection = self._connections.get(name, membership, deadline)
        if deadline.expired(self._clock):
            raise DeadlineExpired(f"{name}: the deadline passed before layer {layer} was sent", peer=name)
        if len(dispatch.rows) > connection.max_rows:
            expected = f"at most {connection.max_rows} (what {name} takes in one message)"
            raise InvalidInput("rows", expected, len(dispatch.rows))
        batch = dispatch.batch
        header = Header(
            kind=expert_pb2.FRAME_KIND_FORWARD,
            correlation_id=next(self._ids),
            attempt=0,
            epoch=placement.epoch,
            incarnation=connection.endpoint.incarnation,
            remaining_us=deadline.remaining_us(self._clock),
            priority=priority,
            layer=layer,
            compute_mode=self._limits.mode_number,
            wire_dtype=self._limits.dtype_number,
            rows=len(dispatch.rows),
            hidden=self._limits.hidden,
            units=len(dispatch.unit_row),
            group_expert=batch.group_expert,
            group_count=batch.group_count,
            entry_row=batch.entry_row,
            entry_slot=batch.entry_slot,
            entry_unit=batch.entry_unit,
            entry_weight=batch.entry_weight,
            unit_slots=batch.unit_slots,
        )
        tensor = rows_of(x, dispatch).data.cast("B")
        try:
            return _Sent(connection, connection.send(header, tensor, deadline, self._wait_s))
        except WorkerLost:
            if connection.lost is None:
                raise
            # The stream died, perhaps long ago while idle: whatever left of this message was not all of it.
            connection = self._connections.get(name, membership, deadline)
            header.attempt = 1
            return _Sent(connection, connection.send(header, tensor, deadline, self._wait_s))

    def _receive(
        self, sent: _Sent | ColibriError, deadline: Deadline, times: ExchangeTimes
    ) -> PartResult | ColibriError:
        result: PartResult | ColibriError
        if isinstance(sent, ColibriError):
            result = sent
        else:
            try:
                reply = sent.connection.receive(sent.message, deadline, self._wait_s)
            except ColibriError as error:
                result = error
            else:
                result = outcome(reply, sent.connection.peer)
                times.bytes_received += len(reply.tensor)
                times.worker_queue_s += reply.header.queue_us * 1e-6
                times.worker_compute_s += reply.header.compute_us * 1e-6
        if isinstance(result, ColibriError):
            times.failed_messages += 1
        return result

    def _watch(self) -> None:
        seen: Membership | None = None
        membership = self._directory.current()
        while not self._closing.is_set():
            if membership is not seen:
                seen = membership
                self._connections.keep(membership)
                self._connect_all(membership)
            membership = self._directory.wait_change(seen, _WATCH_S)

    def _connect_all(self, membership: Membership) -> dict[str, ColibriError]:
        failures = {}
        for name in membership.endpoints:
            try:
                self._connections.get(name, membership, Deadline())
            except ColibriError as error:
                failures[name] = error
        return failures
