"""Channels of clients."""

from __future__ import annotations

from colibri.transport.options import Options, channel_options

#: A name is resolved again so often at most; gRPC's own 30 s would hide a server that came back elsewhere.
_RESOLVE_AGAIN_MS = 1000


def client_options() -> Options:
    """Besides the options of all channels, whose backoff between attempts to connect ends at a second."""
    return [*channel_options(), ("grpc.dns_min_time_between_resolutions_ms", _RESOLVE_AGAIN_MS)]
