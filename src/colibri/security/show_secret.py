"""Send a deployment's secret with every call of a channel, so that no caller of a worker can forget it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from colibri.security.access import AUTHORIZATION
from colibri.security.plane_secret import PlaneSecret


class _Details(grpc.ClientCallDetails):
    """A call's details with the attributes that gRPC wants."""

    def __init__(self, details: Any, metadata: tuple[tuple[str, str | bytes], ...]) -> None:
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = metadata
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


class ShowSecret(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    """Adds one header to calls of all kinds and changes nothing else."""

    def __init__(self, secret: PlaneSecret) -> None:
        self._shown = (AUTHORIZATION, f"Bearer {secret.text}")

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_secret(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_secret(client_call_details), request)

    def intercept_stream_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._with_secret(client_call_details), request_iterator)

    def intercept_stream_stream(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request_iterator: Any
    ) -> Any:
        return continuation(self._with_secret(client_call_details), request_iterator)

    def _with_secret(self, details: Any) -> _Details:
        return _Details(details, (*(details.metadata or ()), self._shown))
