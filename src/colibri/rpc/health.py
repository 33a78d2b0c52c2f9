"""The gRPC service Health, with watchers that delay nobody.

When a status changes, grpc's own implementation sends to one watcher after another, and waits for one that does not
read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

SERVICE_NAME: str = health.SERVICE_NAME
_Reply = health_pb2.HealthCheckResponse
#: How often a watcher looks by itself, seconds: changes, its call's end and the server's wake it.
_LOOK_S = 30.0


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """Thread-safe. Every name is NOT_SERVING at first."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = frozenset(names)
        self._serving = False
        self._closed = False
        self._changed = threading.Condition()

    def set_serving(self, serving: bool) -> None:
        with self._changed:
            self._serving = serving
            self._changed.notify_all()

    def close(self) -> None:
        """Tells watchers the last status, and ends them."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def Check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        if request.service not in self._names:
            context.abort(grpc.StatusCode.NOT_FOUND, f"service: expected {self._expected()}")
        return _Reply(status=self._status(request.service))

    def Watch(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        told: int | None = None
        context.add_callback(self._wake)
        while context.is_active():
            with self._changed:
                while told == self._status(request.service) and not self._closed and context.is_active():
                    self._changed.wait(_LOOK_S)
                status, last = self._status(request.service), self._closed
            if status != told:
                told = status
                yield _Reply(status=status)
            if last:
                return

    def _status(self, name: str) -> int:
        if name not in self._names:
            return int(_Reply.SERVICE_UNKNOWN)
        return int(_Reply.SERVING if self._serving else _Reply.NOT_SERVING)

    def _expected(self) -> str:
        return " or ".join(sorted(self._names - {""}) or ["none"])

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
