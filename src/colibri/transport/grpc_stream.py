"""A link over gRPC's public API: one bidirectional Exchange stream, frames as bytes both ways.

Thread hand-overs are what a hop costs, so a frame passes as few as the API allows. To send, grpc's own thread takes
it from the queue. A received frame goes from grpc's event thread, by way of the deserialiser, straight to the
waiting receiver, while a thread of ours only asks grpc for the next one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from queue import Empty, SimpleQueue

import grpc

from colibri.errors import DeadlineExpired, WorkerLost
from colibri.grpc_options import channel_options
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.transport.link import SEND_TIMEOUT_S, LinkKind

EXCHANGE_METHOD = "/colibri.v1.Expert/Exchange"
#: Frames queued for sending, and received but not yet taken, may hold this many bytes, or one frame.
QUEUED_BYTES = 64 << 20
_JOIN_TIMEOUT_S = 5.0


def open_channel(target: str, max_message_bytes: int, security: ChannelSecurity = PLAIN) -> grpc.Channel:
    """Opens a channel to one worker, for its data plane and its control calls. It connects with its first call.

    target: "unix:/path" or "host:port".
    max_message_bytes: FrameLimits.max_frame_bytes, as on the worker's side.
    """
    return security.open(target, channel_options(max_message_bytes))


class GrpcStreamLink:
    """A Link (colibri.transport.link) over an open channel, which the caller still has to close.

    peer: the worker's name.
    queued_bytes: bound of each queue, bytes.
    """

    def __init__(self, channel: grpc.Channel, peer: str, queued_bytes: int = QUEUED_BYTES) -> None:
        self._peer = peer
        self._outbox = _Outbox(queued_bytes)
        self._inbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._inbox_bytes = _Gauge(queued_bytes)
        self._lost: str | None = None
        exchange: grpc.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
            EXCHANGE_METHOD, request_serializer=None, response_deserializer=self._arrived
        )
        self._call = exchange(self._outbox)
        self._pump = threading.Thread(target=self._ask_for_frames, name=f"link {peer}", daemon=True)
        self._pump.start()

    @property
    def kind(self) -> LinkKind:
        return LinkKind.GRPC

    @property
    def peer(self) -> str:
        return self._peer

    @property
    def lost(self) -> str | None:
        return self._lost

    def send(self, parts: Sequence[bytes | memoryview], timeout_s: float = SEND_TIMEOUT_S) -> None:
        """See Link.send. The parts are joined before the call returns, so their memory may then be reused."""
        if self._lost is None and not self._outbox.put(b"".join(parts), timeout_s) and self._lost is None:
            raise DeadlineExpired(
                f"{self._peer}: did not take a frame within {timeout_s:g} s", peer=self._peer
            )
        if self._lost is not None:
            raise WorkerLost(self._lost, peer=self._peer)

    def receive(self, timeout_s: float) -> memoryview:
        try:
            frame = self._inbox.get(timeout=max(0.0, timeout_s))
        except Empty:
            raise DeadlineExpired(f"{self._peer}: no frame within {timeout_s:g} s", peer=self._peer) from None
        if frame is None:
            self._inbox.put(None)  # for whoever asks next
            raise WorkerLost(self._lost or f"{self._peer}: link lost", peer=self._peer)
        self._inbox_bytes.leave(len(frame))
        return memoryview(frame)

    def close(self) -> None:
        self._lose(f"{self._peer}: link closed")
        self._call.cancel()
        if threading.current_thread() is not self._pump:
            self._pump.join(_JOIN_TIMEOUT_S)

    def _arrived(self, frame: bytes) -> bytes:
        # On grpc's event thread, which serves all calls of the process: nothing here may wait.
        self._inbox_bytes.enter(len(frame))
        self._inbox.put(frame)
        return frame

    def _ask_for_frames(self) -> None:
        try:
            for _ in self._call:
                self._inbox_bytes.wait_below()
            end = "the worker ended the stream"
        except grpc.RpcError as error:
            # The rendezvous is the error itself; a cancelled one may come without being a Call.
            code = error.code() if isinstance(error, grpc.Call) else None
            details = error.details() if isinstance(error, grpc.Call) else error
            end = f"stream lost: {code.name if code else 'UNKNOWN'}: {details}"
        self._lose(f"{self._peer}: {end}")

    def _lose(self, reason: str) -> None:
        if self._lost is None:
            self._lost = reason
        self._inbox_bytes.open()
        self._outbox.close()
        self._inbox.put(None)


class _Gauge:
    """Counts bytes between a producer that never waits and one that asks before it produces more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._open = False
        self._lock = threading.Condition()

    def enter(self, size: int) -> None:
        with self._lock:
            self._bytes += size

    def leave(self, size: int) -> None:
        with self._lock:
            self._bytes -= size
            if self._bytes < self._limit:
                self._lock.notify_all()

    def open(self) -> None:
        """Lets nobody wait here any more."""
        with self._lock:
            self._open = True
            self._lock.notify_all()

    def wait_below(self) -> None:
        # Unbounded only in form: whoever leaves frames unread holds up nobody else, and close() opens the
        # gauge.
        if self._bytes >= self._limit:
            with self._lock:
                self._lock.wait_for(lambda: self._open or self._bytes < self._limit)


class _Outbox(Iterator[bytes]):
    """The request iterator: a queue bounded in bytes, which grpc's sending thread empties."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._frames: SimpleQueue[bytes | None] = SimpleQueue()
        self._lock = threading.Condition()
        self._bytes = 0
        self._taken = 0
        self._closed = False

    def put(self, frame: bytes, timeout_s: float) -> bool:
        """Queues a frame. Returns False if there was no room within `timeout_s` seconds, or the outbox is closed."""
        size = len(frame)
        with self._lock:
            if self._bytes and self._bytes + size > self._limit:
                self._lock.wait_for(
                    lambda: self._closed or not self._bytes or self._bytes + size <= self._limit, timeout_s
                )
                if self._bytes and self._bytes + size > self._limit:
                    return False
            if self._closed:
                return False
            self._bytes += size
            self._frames.put(frame)
        return True

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._frames.put(None)
                self._lock.notify_all()

    def __next__(self) -> bytes:
        # grpc asks for a frame once its transport has taken the one before.
        if self._taken:
            with self._lock:
                self._bytes -= self._taken
                self._lock.notify_all()
            self._taken = 0
        frame = self._frames.get()
        if frame is None or self._closed:
            raise StopIteration
        self._taken = len(frame)
        return frame
