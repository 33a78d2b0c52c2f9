"""A peer for links that does what each frame says, in this process or as one of its own
(`python -m tests.support.frame_server LISTEN`, which prints its target)."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator

import grpc

from colibri.rpc.server import RpcServer, Service, build_server
from colibri.transport.grpc_stream import EXCHANGE_METHOD
from colibri.transport.options import server_options

MAX_FRAME = 2 << 20


class FrameServer:
    """Frames starting with: `end` end the stream, `abort` end it with a status, `flood` are answered by 1000
    frames of 64 KiB, `deaf` stop the reading; all others come back as they are."""

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
        handler = grpc.stream_stream_rpc_method_handler(self._exchange)
        service, _, method = EXCHANGE_METHOD.lstrip("/").partition("/")
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))

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


def main() -> None:
    server = FrameServer(sys.argv[1])
    print(server.target, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        time.sleep(1.0)


if __name__ == "__main__":
    main()
