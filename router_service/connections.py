"""Open connections to workers: channel, handshake, link."""

from __future__ import annotations

import logging
from collections.abc import Callable

import grpc

from colibri.errors import ColibriError
from colibri.placement import WorkerEndpoint
from colibri.router_service.connection import Connection
from colibri.router_service.handshake import RouterIdentity, shake_hands
from colibri.transport.grpc_stream import GrpcStreamLink, open_channel
from colibri.transport.host import host_id
from colibri.transport.link import Link, LinkKind
from colibri.transport.shared_memory import SharedMemoryLink
from colibri.wire.limits import FrameLimits

_log = logging.getLogger(__name__)

OnEnd = Callable[[Connection, ColibriError], None]
#: (endpoint, timeout in seconds, called when the connection ends) -> connection
Connect = Callable[[WorkerEndpoint, float, OnEnd], Connection]


def connector(
    identity: RouterIdentity, limits: FrameLimits, on_late: Callable[[], None], kind: LinkKind = LinkKind.AUTO
) -> Connect:
    """Returns a function that connects to a worker over a new gRPC channel. See shake_hands for what that raises."""

    def connect(endpoint: WorkerEndpoint, timeout_s: float, on_end: OnEnd) -> Connection:
        channel = open_channel(endpoint.target, limits.max_frame_bytes, endpoint.security)
        try:
            hello = shake_hands(channel, endpoint, identity, timeout_s)
            link = _open_link(channel, endpoint.name, hello.host, kind, timeout_s)
        except BaseException:
            channel.close()
            raise
        return Connection(
            endpoint, link, limits, hello.max_rows, on_close=channel.close, on_end=on_end, on_late=on_late
        )

    return connect


def _open_link(channel: grpc.Channel, name: str, host: str, kind: LinkKind, timeout_s: float) -> Link:
    """Opens shared memory with a worker of this host. Falls back to the gRPC stream, also where memory cannot be
    shared.
    """
    if kind is LinkKind.SHARED_MEMORY or (kind is LinkKind.AUTO and host and host == host_id()):
        try:
            return SharedMemoryLink(channel, name, host_id(), timeout_s)
        except ColibriError as error:
            if kind is LinkKind.SHARED_MEMORY:
                raise
            _log.warning("%s: no shared memory, so frames go through gRPC: %s", name, error.message)
    return GrpcStreamLink(channel, name)
