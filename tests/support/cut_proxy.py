"""A TCP proxy that loses its connections when told: what a client sees of a network or a server that fails."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from colibri.address import UnixAddress, parse_address


class CutProxy:
    """Forwards to `upstream`. `cut` resets every connection and refuses new ones until `mend`."""

    def __init__(self, upstream: str) -> None:
        self._upstream = parse_address(upstream)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.target = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._pairs: list[socket.socket] = []
        self._orphans: list[socket.socket] = []
        self._broken = False
        self.connections = 0
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        with self._lock:
            self._broken = True
            self._reset()

    def mend(self) -> None:
        with self._lock:
            self._broken = False

    def lose(self) -> None:
        """What is open is lost; the next connection works."""
        with self._lock:
            self._reset()

    def lose_client(self) -> None:
        """The client's side is lost, the server's stays open and silent."""
        with self._lock:
            kept, self._pairs = self._pairs[1::2], self._pairs[::2]
            self._orphans += kept
            self._reset()

    def switch(self, upstream: str) -> None:
        """What is open is lost; the next connection goes elsewhere."""
        with self._lock:
            self._upstream = parse_address(upstream)
            self._reset()

    def close(self) -> None:
        self._pairs += self._orphans
        self.cut()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _reset(self) -> None:
        for side in self._pairs:
            with contextlib.suppress(OSError):
                # Wakes the thread that reads it, which closes it.
                side.shutdown(socket.SHUT_RDWR)
        self._pairs.clear()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._broken:
                    client.close()
                    continue
                try:
                    server = self._dial()
                except OSError:
                    client.close()
                    continue
                self.connections += 1
                self._pairs += [client, server]
            for a, b in ((client, server), (server, client)):
                thread = threading.Thread(target=self._pump, args=(a, b))
                thread.start()
                self._threads.append(thread)

    def _dial(self) -> socket.socket:
        if isinstance(self._upstream, UnixAddress):
            server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            server.connect(self._upstream.path)
            return server
        return socket.create_connection((self._upstream.host, self._upstream.port), 10)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                if source not in self._orphans:
                    sink.sendall(data)
        except OSError:
            pass
        finally:
            for side in (source, sink):
                if side not in self._orphans:
                    with contextlib.suppress(OSError):
                        side.shutdown(socket.SHUT_RDWR)
            source.close()


@contextlib.contextmanager
def cut_proxy(upstream: str) -> Iterator[CutProxy]:
    proxy = CutProxy(upstream)
    try:
        yield proxy
    finally:
        proxy.close()
