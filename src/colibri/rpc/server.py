"""The one way to build a gRPC server here: who may call, typed errors, health, reflection, bounded concurrency.

Servicers raise ColibriError; the server turns it into a status, and bytes that are no message into
INVALID_ARGUMENT. Calls beyond the limit are refused with a retryable RESOURCE_EXHAUSTED, those of strangers before
their message is read. Health has threads of its own, so that it answers whatever else runs, and whoever asks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import BoundedSemaphore
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from colibri.errors import Busy, ColibriError, ConfigError, InvalidInput
from colibri.rpc.status import abort
from colibri.security.access import Access, Rules
from colibri.security.bind import checked_bind, is_local
from colibri.security.roles import Scope
from colibri.security.server import ServerSecurity
from colibri.security.server_certificates import ServerCertificates
from colibri.security.tokens import TokenFile
from colibri.transport.address import TcpAddress, UnixAddress, claim_unix_path, parse_address
from colibri.transport.options import Options, server_options

_log = logging.getLogger(__name__)

#: Threads that only refuse calls beyond the limit, so that no call waits in a queue unseen.
_REFUSING_THREADS = 4
_HEALTH_THREADS = 2
_HEALTH_PREFIX = f"/{health.SERVICE_NAME}/"


@dataclass(frozen=True, slots=True)
class Service:
    """name: full name, e.g. 'colibri.v1.Expert'; register: adds its handlers to a grpc.Server; scope: what its callers
    must be allowed."""

    name: str
    register: Callable[[grpc.Server], object]
    scope: Scope = Scope.CLIENT


class RpcServer:
    """A gRPC server bound to its address. NOT_SERVING until set_serving(True)."""

    def __init__(
        self,
        server: grpc.Server,
        target: str,
        statuses: health.HealthServicer,
        names: Sequence[str],
        pools: Sequence[ThreadPoolExecutor],
    ) -> None:
        self._server = server
        self._target = target
        self._statuses = statuses
        self._names = names
        self._pools = pools

    @property
    def target(self) -> str:
        """Address for clients, with the port that was taken."""
        return self._target

    def start(self) -> None:
        self._server.start()

    def set_serving(self, serving: bool) -> None:
        """Sets the health of the whole server ('') and of each of its services."""
        status = health_pb2.HealthCheckResponse
        for name in self._names:
            self._statuses.set(name, status.SERVING if serving else status.NOT_SERVING)

    def stop(self, grace_s: float) -> bool:
        """NOT_SERVING, no new calls, running ones may end within `grace_s` seconds, then they are cancelled.

        Returns whether everything had ended within `grace_s` and two seconds.
        """
        self.set_serving(False)
        ended = self._server.stop(grace_s).wait(grace_s + 2.0)
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)
        return ended


def build_server(
    services: Sequence[Service],
    *,
    listen: str,
    max_calls: int = 64,
    options: Options | None = None,
    name: str = "server",
    security: ServerSecurity | None = None,
) -> RpcServer:
    """A bound server, not yet started.

    listen: "unix:/path" or "host:port" (port 0: a free one). max_calls: calls that may run at once, open
    streams included; one more is refused with RESOURCE_EXHAUSTED. options: default server_options(). name:
    names this process in refusals. security: None: none, for addresses of this machine. Raises ConfigError when the
    address cannot be bound, or must not be without TLS and callers' credentials.
    """
    security = security or ServerSecurity()
    address = checked_bind(
        parse_address(listen, "listen"),
        "listen",
        tls=security.tls_cert is not None,
        callers_known=security.callers_known,
        insecure=security.insecure,
    )
    local = is_local(address)
    if max_calls < 1:
        raise ConfigError("max_calls", "at least 1", max_calls)
    if isinstance(address, UnixAddress):
        claim_unix_path(address.path, "listen")
    rules = Rules(
        {service.name: service.scope for service in services},
        None if security.tokens is None else TokenFile(security.tokens),
        roles=security.client_ca is not None,
        here=not local and not security.callers_known,
        secret=security.secret,
    )
    credentials = _credentials(security)
    calls = ThreadPoolExecutor(max_calls + _REFUSING_THREADS, thread_name_prefix="colibri-call")
    checks = ThreadPoolExecutor(_HEALTH_THREADS, thread_name_prefix="colibri-health")
    server = grpc.server(
        calls,
        interceptors=[_Guard(name, max_calls, checks, Access(name, rules))],
        options=server_options() if options is None else options,
    )
    statuses = health.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(statuses, server)
    for service in services:
        service.register(server)
    names = [service.name for service in services]
    if local if security.reflection is None else security.reflection:
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    try:
        port = (
            server.add_insecure_port(str(address))
            if credentials is None
            else server.add_secure_port(str(address), credentials)
        )
    except RuntimeError as error:
        raise ConfigError("listen", "an address that can be bound", listen) from error
    target = str(TcpAddress(address.host, port) if isinstance(address, TcpAddress) else address)
    result = RpcServer(server, target, statuses, ["", *names], [calls, checks])
    result.set_serving(False)
    return result


def _credentials(security: ServerSecurity) -> grpc.ServerCredentials | None:
    if security.tls_cert is None or security.tls_key is None:
        return None
    return ServerCertificates(security.tls_cert, security.tls_key, security.client_ca).credentials()


class _Guard(grpc.ServerInterceptor):
    """Wraps every handler: who may call, the call limit, typed errors to statuses; health goes to its own threads and
    answers everybody."""

    def __init__(self, name: str, max_calls: int, checks: ThreadPoolExecutor, access: Access) -> None:
        self._name = name
        self._max_calls = max_calls
        self._free = BoundedSemaphore(max_calls)
        self._checks = checks
        self._access = access

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = str(handler_call_details.method)
        if method.startswith(_HEALTH_PREFIX):
            return _rebuilt(handler, self._on_health_threads(_behaviour(handler)))
        refusal = self._access.at_arrival(method, handler_call_details.invocation_metadata or ())
        if refusal is not None:
            return _refused(handler, refusal)
        wrap = self._streaming if handler.response_streaming else self._unary
        lenient = not handler.request_streaming
        return _rebuilt(handler, wrap(_behaviour(handler), method), lenient=lenient)

    def _on_health_threads(self, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        def check(*args: Any) -> Any:
            return behaviour(*args)

        # Read by grpc's server off the behaviour; HealthServicer itself uses both. A grpc that stops reading
        # them runs health on the calls' threads, where the refusing ones keep it alive.
        check.experimental_thread_pool = self._checks  # type: ignore[attr-defined]
        check.experimental_non_blocking = getattr(  # type: ignore[attr-defined]
            behaviour, "experimental_non_blocking", False
        )
        return check

    def _unary(self, behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
        def call(request: Any, context: grpc.ServicerContext) -> Any:
            self._enter(context)
            try:
                self._access.at_start(method, context)
                return behaviour(_well_formed(request), context)
            except ColibriError as error:
                abort(context, error)
            except Exception as error:
                self._unexpected(context, error)
            finally:
                self._free.release()

        return call

    def _streaming(self, behaviour: Callable[..., Any], method: str) -> Callable[..., Iterator[Any]]:
        def call(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            self._enter(context)
            try:
                self._access.at_start(method, context)
                yield from behaviour(_well_formed(request), context)
            except ColibriError as error:
                abort(context, error)
            except Exception as error:
                self._unexpected(context, error)
            finally:
                self._free.release()

        return call

    def _enter(self, context: grpc.ServicerContext) -> None:
        if not self._free.acquire(blocking=False):
            abort(
                context,
                Busy(
                    f"{self._name}: {self._max_calls} calls run already, the limit of this server",
                    peer=self._name,
                    retry_after_s=0.1,
                ),
            )

    def _unexpected(self, context: grpc.ServicerContext, error: Exception) -> None:
        # context.abort and a broken stream also arrive here, as bare exceptions that grpc itself must see. It would
        # tell the caller the text of any other.
        if (type(error) is Exception and not error.args) or (
            isinstance(error, grpc.RpcError) and not context.is_active()
        ):
            raise error
        _log.error("%s: unexpected error in a call", self._name, exc_info=error)
        abort(
            context, ColibriError(f"{self._name}: internal error ({type(error).__name__})", peer=self._name)
        )


def _refused(
    handler: grpc.RpcMethodHandler[Any, Any], refusal: ColibriError
) -> grpc.RpcMethodHandler[Any, Any]:
    """In place of a handler: it reads nothing of the request."""

    def refuse(request: Any, context: grpc.ServicerContext) -> Any:
        abort(context, refusal)

    def refuse_streaming(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        abort(context, refusal)
        yield None

    return _made(handler, refuse_streaming if handler.response_streaming else refuse, None, None)


@dataclass(frozen=True, slots=True)
class _Malformed:
    """In place of a request whose bytes are no message of its type."""

    type_name: str
    size: int


def _lenient(deserializer: Callable[[bytes], Any] | None) -> Callable[[bytes], Any] | None:
    """Lets the call begin, so that it is refused with a typed error: grpc itself would log a traceback for each and
    answer INTERNAL."""
    if deserializer is None:
        return None
    kind = getattr(getattr(deserializer, "__self__", None), "DESCRIPTOR", None)
    name = kind.full_name if kind is not None else "message of this call"

    def read(data: bytes) -> Any:
        try:
            return deserializer(data)
        except Exception:
            return _Malformed(name, len(data))

    return read


def _well_formed(request: Any) -> Any:
    if isinstance(request, _Malformed):
        raise InvalidInput("request", f"a {request.type_name}", f"{request.size} bytes that are none")
    return request


def _behaviour(handler: grpc.RpcMethodHandler[Any, Any]) -> Callable[..., Any]:
    found = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    if found is None:
        raise TypeError("a handler without behaviour")
    return found


def _rebuilt(
    handler: grpc.RpcMethodHandler[Any, Any], behaviour: Callable[..., Any], *, lenient: bool = False
) -> grpc.RpcMethodHandler[Any, Any]:
    read = handler.request_deserializer
    return _made(handler, behaviour, _lenient(read) if lenient else read, handler.response_serializer)


def _made(
    handler: grpc.RpcMethodHandler[Any, Any],
    behaviour: Callable[..., Any],
    read: Callable[[bytes], Any] | None,
    write: Callable[[Any], bytes] | None,
) -> grpc.RpcMethodHandler[Any, Any]:
    """Of the same kind as `handler`."""
    if handler.request_streaming:
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
    else:
        make = (
            grpc.unary_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.unary_unary_rpc_method_handler
        )
    return make(behaviour, read, write)
