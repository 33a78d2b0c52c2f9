"""Connections by worker: opened with a handshake, replaced when a worker's incarnation changes, closed with
it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import grpc

from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, DeadlineExpired, WorkerLost
from colibri.placement import Membership, WorkerEndpoint
from colibri.router_service.connection import Connection
from colibri.router_service.handshake import RouterIdentity, shake_hands
from colibri.transport.grpc_stream import GrpcStreamLink, open_channel
from colibri.transport.host import host_id
from colibri.transport.link import Link, LinkKind
from colibri.transport.shared_memory import SharedMemoryLink
from colibri.wire.limits import FrameLimits

_log = logging.getLogger(__name__)

#: After a failed connection the same endpoint is not tried again for so long, seconds.
RECONNECT_AFTER_S = 0.25

Connect = Callable[[WorkerEndpoint, float], Connection]


def connector(
    identity: RouterIdentity, limits: FrameLimits, on_late: Callable[[], None], kind: LinkKind = LinkKind.AUTO
) -> Connect:
    """Connects over a gRPC channel of its own; see shake_hands for what it raises."""

    def connect(endpoint: WorkerEndpoint, timeout_s: float) -> Connection:
        channel = open_channel(endpoint.target, limits.max_frame_bytes)
        try:
            hello = shake_hands(channel, endpoint, identity, timeout_s)
            link = _open_link(channel, endpoint.name, hello.host, kind, timeout_s)
        except BaseException:
            channel.close()
            raise
        return Connection(endpoint, link, limits, hello.max_rows, on_close=channel.close, on_late=on_late)

    return connect


def _open_link(channel: grpc.Channel, name: str, host: str, kind: LinkKind, timeout_s: float) -> Link:
    """Shared memory with a worker of this host, the gRPC stream otherwise and where memory cannot be shared."""
    if kind is LinkKind.SHARED_MEMORY or (kind is LinkKind.AUTO and host and host == host_id()):
        try:
            return SharedMemoryLink(channel, name, host_id(), timeout_s)
        except ColibriError as error:
            if kind is LinkKind.SHARED_MEMORY:
                raise
            _log.warning("%s: no shared memory, so frames go through gRPC: %s", name, error.message)
    return GrpcStreamLink(channel, name)


class _Slot:
    """One worker's place. `lock` is held while connecting, so that nobody connects twice."""

    __slots__ = ("connection", "failed", "failure", "lock", "retry_at")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.connection: Connection | None = None
        self.failed: WorkerEndpoint | None = None
        self.failure: ColibriError | None = None
        self.retry_at = 0.0


class Connections:
    """Thread-safe. connect_s: bound of one connection with its handshake, seconds."""

    def __init__(self, connect: Connect, connect_s: float, clock: Clock = time.monotonic) -> None:
        self._connect = connect
        self._connect_s = connect_s
        self._clock = clock
        self._lock = threading.Lock()
        self._slots: dict[str, _Slot] = {}
        self._closed = False

    def get(self, name: str, membership: Membership, deadline: Deadline) -> Connection:
        """The live connection to a worker as `membership` knows it, made if need be.

        Raises WorkerLost when the membership has no such worker or a newer life of it is known already;
        otherwise as the connection itself.
        """
        endpoint = membership.endpoints.get(name)
        if endpoint is None:
            epoch = membership.placement.epoch
            raise WorkerLost(f"{name}: not alive in the placement of epoch {epoch}", peer=name)
        slot = self._slots.get(name)
        connection = slot.connection if slot is not None else None
        if (
            connection is not None
            and connection.lost is None
            # Nearly always the very same object; comparing its fields would cost as much as all else here.
            and (connection.endpoint is endpoint or connection.endpoint == endpoint)
        ):
            return connection
        return self._replace(self._slot(name), endpoint, deadline)

    def present(self, name: str) -> Connection | None:
        """The last connection to a worker, alive or lost; never makes one."""
        slot = self._slots.get(name)
        return None if slot is None else slot.connection

    def keep(self, membership: Membership) -> None:
        """Ends connections to workers that are not alive any more, or have begun a new life."""
        for name, slot in list(self._slots.items()):
            connection = slot.connection
            if connection is not None and membership.endpoints.get(name) != connection.endpoint:
                text = f"{name}: incarnation {connection.endpoint.incarnation} is not alive any more"
                connection.fail(WorkerLost(text, peer=name))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            slots = list(self._slots.values())
        for slot in slots:
            with slot.lock:
                if slot.connection is not None:
                    slot.connection.close()

    def _slot(self, name: str) -> _Slot:
        with self._lock:
            if self._closed:
                raise WorkerLost(f"{name}: the router is closed", peer=name)
            return self._slots.setdefault(name, _Slot())

    def _replace(self, slot: _Slot, endpoint: WorkerEndpoint, deadline: Deadline) -> Connection:
        name = endpoint.name
        # Whoever holds the lock connects, which is bounded.
        if deadline.expired(self._clock) or not slot.lock.acquire(
            timeout=deadline.bound(self._connect_s, self._clock)
        ):
            if deadline.expired(self._clock):
                raise DeadlineExpired(f"{name}: the deadline passed before it was connected", peer=name)
            raise WorkerLost(f"{name}: still connecting after {self._connect_s:g} s", peer=name)
        try:
            old = slot.connection
            if old is not None:
                if old.endpoint == endpoint and old.lost is None:
                    return old
                if old.endpoint.incarnation > endpoint.incarnation:
                    newer = old.endpoint.incarnation
                    text = f"{name}: incarnation {endpoint.incarnation} was replaced by {newer}"
                    raise WorkerLost(text, peer=name)
                old.close()
            if slot.failure is not None and slot.failed == endpoint and self._clock() < slot.retry_at:
                raise slot.failure.with_traceback(None)
            if self._closed:
                raise WorkerLost(f"{name}: the router is closed", peer=name)
            return self._open(slot, endpoint, deadline)
        finally:
            slot.lock.release()

    def _open(self, slot: _Slot, endpoint: WorkerEndpoint, deadline: Deadline) -> Connection:
        timeout_s = deadline.bound(self._connect_s, self._clock)
        try:
            slot.connection = self._connect(endpoint, timeout_s)
        except ColibriError as error:
            if deadline.expired(self._clock):
                text = f"{endpoint.name}: the deadline passed before it was connected"
                raise DeadlineExpired(text, peer=endpoint.name) from error
            slot.failed, slot.failure = endpoint, error
            slot.retry_at = self._clock() + RECONNECT_AFTER_S
            raise
        slot.failure = None
        return slot.connection
