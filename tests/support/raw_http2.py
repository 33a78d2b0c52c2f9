"""A client of raw HTTP/2: it sends what gRPC's own clients never would."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

Metadata = Iterable[tuple[str, str]]
_CONNECT_S = 10.0


@dataclass(slots=True)
class Stream:
    """What came back on one stream. status: grpc-status, None before the end; reset: an error code."""

    status: int | None = None
    reset: int | None = None
    data: bytes = b""
    ended: bool = False


class RawHttp2:
    """One connection. ca: the server's CA, over TLS; certificate: (certificate, key) to show; window: what the server
    may send on each stream before this client says more."""

    def __init__(
        self,
        target: str,
        ca: Path | None = None,
        certificate: tuple[Path, Path] | None = None,
        window: int = 65_535,
    ) -> None:
        self._secure = ca is not None
        self.streams: dict[int, Stream] = {}
        self.gone = False
        self.said_goodbye = False
        self._socket = _connected(target)
        if ca is not None:
            context = ssl.create_default_context(cafile=str(ca))
            context.set_alpn_protocols(["h2"])
            if certificate is not None:
                context.load_cert_chain(*map(str, certificate))
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        # What is sent is not checked here: the point is to send what is wrong.
        self.h2 = H2Connection(
            H2Configuration(validate_outbound_headers=False, normalize_outbound_headers=False)
        )
        self.h2.initiate_connection()
        self.h2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: window})
        self.flush()

    def __enter__(self) -> RawHttp2:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def settle(self, within_s: float = _CONNECT_S) -> int:
        """Waits for the server's settings; how many streams it allows at once."""
        until = time.monotonic() + within_s
        while (
            self.h2.remote_settings.max_concurrent_streams > 1 << 20
            and not self.gone
            and time.monotonic() < until
        ):
            self.listen(0.05)
        return self.h2.remote_settings.max_concurrent_streams

    def open(self, method: str, metadata: Metadata = (), *, token: str = "", end: bool = False) -> int:
        """Sends the headers of a call; the stream's number."""
        number = self.h2.get_next_available_stream_id()
        headers = [
            (":method", "POST"),
            (":scheme", "https" if self._secure else "http"),
            (":path", method),
            (":authority", "localhost"),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            *([("authorization", f"Bearer {token}")] if token else []),
            *metadata,
        ]
        self.h2.send_headers(number, headers, end_stream=end)
        self.streams[number] = Stream()
        return number

    def message(self, number: int, message: bytes, *, end: bool = True) -> None:
        """Sends a whole message."""
        self.data(number, b"\0" + len(message).to_bytes(4, "big") + message, end=end)

    def data(self, number: int, data: bytes, *, end: bool = False) -> None:
        with contextlib.suppress(ProtocolError):  # the server ended the stream meanwhile
            self.h2.send_data(number, data, end_stream=end)

    def reset(self, number: int) -> None:
        with contextlib.suppress(ProtocolError):
            self.h2.reset_stream(number, ErrorCodes.CANCEL)

    def flush(self) -> None:
        self.send_raw(self.h2.data_to_send())

    def send_raw(self, data: bytes) -> None:
        """These very bytes."""
        try:
            self._socket.settimeout(_CONNECT_S)
            self._socket.sendall(data)
        except OSError:
            self.gone = True

    def listen(self, seconds: float) -> None:
        """Takes what comes for so long, or until the server hangs up."""
        until = time.monotonic() + seconds
        while not self.gone and (left := until - time.monotonic()) > 0:
            self._socket.settimeout(left)
            try:
                received = self._socket.recv(1 << 16)
            except TimeoutError:
                return
            except OSError:
                received = b""
            if not received:
                self.gone = True
                return
            try:
                events = self.h2.receive_data(received)
            except ProtocolError:
                self.gone = True
                return
            for event in events:
                self._took(event)
            self.flush()

    def until_ended(self, numbers: Iterable[int], within_s: float) -> bool:
        """Whether each of these streams ended, one by one: not by the connection's end."""
        wanted = [self.streams[number] for number in numbers]
        until = time.monotonic() + within_s
        while not all(stream.ended for stream in wanted):
            if self.gone or time.monotonic() >= until:
                return False
            self.listen(0.05)
        return True

    def open_streams(self) -> int:
        return sum(1 for stream in self.streams.values() if not stream.ended)

    def _took(self, event: Event) -> None:
        if isinstance(event, ConnectionTerminated):
            self.said_goodbye = True
            return
        stream = self.streams.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, DataReceived):
            stream.data += event.data or b""
        elif isinstance(event, (ResponseReceived, TrailersReceived)):
            for key, value in event.headers or ():
                if key == b"grpc-status":
                    stream.status = int(value)
        elif isinstance(event, StreamReset):
            stream.reset = int(event.error_code or 0)
            stream.ended = True
        elif isinstance(event, StreamEnded):
            stream.ended = True


def _connected(target: str) -> socket.socket:
    if target.startswith("unix:"):
        found = socket.socket(socket.AF_UNIX)
        found.settimeout(_CONNECT_S)
        found.connect(target.removeprefix("unix:"))
        return found
    host, _, port = target.rpartition(":")
    found = socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found
