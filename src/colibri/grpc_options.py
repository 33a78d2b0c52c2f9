"""gRPC channel and server options, in one place.

The message limit bounds single messages, both ways and on both ends. For the data plane it follows from the model
(colibri.wire.limits), for other services from what they declare.
"""

from __future__ import annotations

#: A peer that answers no ping for this long is lost: a killed host or a cut cable gives no error by itself.
KEEPALIVE_TIME_MS = 10_000
KEEPALIVE_TIMEOUT_MS = 5_000
#: One attempt to connect. A worker that computes, or starts, may take long to answer the first words.
CONNECT_ATTEMPT_MS = 5_000
#: Largest message of a control call (handshake, status, load, health).
CONTROL_MESSAGE_BYTES = 4 << 20
#: Streams of one connection at once, against rapid opening and resetting (CVE-2023-44487).
MAX_STREAMS = 256
#: Whoever connects and then says nothing is sent away; gRPC would keep it for two minutes.
HANDSHAKE_TIMEOUT_MS = 10_000
#: A connection without a call ends after so long; clients connect again with their next call.
IDLE_CONNECTION_MS = 300_000
#: Connections of one server. Beyond that the next one is closed as soon as it is accepted.
MAX_CONNECTIONS = 2048
#: Metadata of one call, in bytes: gRPC's own bounds, written down. Above the first a call may be refused, above the
#: second it is.
METADATA_BYTES, MAX_METADATA_BYTES = 8 << 10, 16 << 10

Options = list[tuple[str, int | str]]


def channel_options(max_message_bytes: int = CONTROL_MESSAGE_BYTES) -> Options:
    """Returns options for a client's channel. max_message_bytes: largest message sent or received."""
    return [
        *_common(max_message_bytes),
        # An http_proxy variable must not capture the cluster's traffic.
        ("grpc.enable_http_proxy", 0),
        # Otherwise channels of equal arguments share one connection, and one lost worker's backoff delays its
        # heir.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Also how long one attempt to connect may take: 100 ms would lose a busy or distant worker.
        ("grpc.min_reconnect_backoff_ms", CONNECT_ATTEMPT_MS),
        ("grpc.max_reconnect_backoff_ms", 1000),
    ]


def server_options(max_message_bytes: int = CONTROL_MESSAGE_BYTES) -> Options:
    """Returns options for a server. max_message_bytes: largest message sent or received."""
    return [
        *_common(max_message_bytes),
        # Two servers on one port would share its connections silently.
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", IDLE_CONNECTION_MS),
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ("grpc.max_metadata_size", METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
        # Must not exceed the clients' ping interval, else they are sent away for "too many pings".
        ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    ]


def _common(max_message_bytes: int) -> Options:
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    ]
