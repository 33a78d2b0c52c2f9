"""A peer for links that does what each frame says, in this process or as one of its own
(`python -m tests.support.frame_server LISTEN`, which prints its target)."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc

from colibri.grpc_options import server_options
from colibri.rpc.server import RpcServer, Service, build_server
from colibri.transport._shared_ring import SharedRing
from colibri.transport.grpc_stream import EXCHANGE_METHOD
from colibri.transport.shared_memory import TOKEN_BYTES, ring_bytes
from colibri.v1 import expert_pb2

MAX_FRAME = 2 << 20


class FrameServer:
    """Frames starting with: `end` end the stream, `abort` end it with a status, `flood` are answered by 1000
    frames of 64 KiB, `deaf` stop the reading; all others come back as they are. Both Exchange and Attach do
    so."""

    def __init__(self, listen: str) -> None:
        self.flooded = 0
        self.hear = threading.Event()
        self._server: RpcServer = build_server(
            [Service("colibri.v1.Expert", self._register)],
            listen=listen,
            options=server_options(MAX_FRAME),
            name="frames",
        )
        self._server.start()

    @property
    def target(self) -> str:
        return self._server.target

    def stop(self) -> None:
        self.hear.set()
        self._server.stop(0.0)

    def _register(self, server: grpc.Server) -> None:
        service, _, method = EXCHANGE_METHOD.lstrip("/").partition("/")
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            method: grpc.stream_stream_rpc_method_handler(self._exchange),
            "Attach": grpc.unary_stream_rpc_method_handler(
                self._attach,
                expert_pb2.AttachRequest.FromString,
                expert_pb2.AttachReply.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    def _attach(
        self, request: expert_pb2.AttachRequest, context: grpc.ServicerContext
    ) -> Iterator[expert_pb2.AttachReply]:
        token = secrets.token_bytes(TOKEN_BYTES)
        ring = SharedRing.create(ring_bytes(MAX_FRAME), token)
        context.add_callback(ring.close)
        yield expert_pb2.AttachReply(pid=os.getpid(), fd=ring.fd, token=token)
        try:
            for frame in self._exchange(_records(ring), context):
                if not ring.write((frame,), 30.0):
                    return
        except ConnectionError:
            return
        finally:
            ring.close()

    def _exchange(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for frame in requests:
            if frame.startswith(b"end"):
                return
            if frame.startswith(b"abort"):
                context.abort(grpc.StatusCode.DATA_LOSS, "a frame I cannot read")
            elif frame.startswith(b"flood"):
                for number in range(1000):
                    self.flooded = number + 1
                    yield b"%d" % number + bytes(64 << 10)
            elif frame.startswith(b"deaf"):
                self.hear.wait(30)
            else:
                yield frame


def _records(ring: SharedRing) -> Iterator[bytes]:
    """Ends with the ring, by its ConnectionError."""
    while True:
        record = ring.read(1.0, 0.0)
        if record is not None:
            yield record


def main() -> None:
    server = FrameServer(sys.argv[1])
    print(server.target, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        time.sleep(1.0)


if __name__ == "__main__":
    main()
