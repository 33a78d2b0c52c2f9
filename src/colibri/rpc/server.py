"""The only way to build a gRPC server here: who may call, typed errors, health, reflection, bounded concurrency.

Servicers raise ColibriError. The server turns it into a status, and bytes that are not a message into
INVALID_ARGUMENT. Calls beyond the limit are refused with a retryable RESOURCE_EXHAUSTED, calls of strangers before
their message is read. Health has places and threads of its own, so it answers whatever else runs, and whoever asks.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
from grpc_health.v1 import health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from colibri.address import TcpAddress, UnixAddress, claim_unix_path, parse_address
from colibri.errors import ConfigError
from colibri.grpc_options import Options, server_options
from colibri.rpc import health
from colibri.rpc.door import Door
from colibri.rpc.guard import Guard, Lane
from colibri.rpc.offer import offer
from colibri.rpc.places import Bounds, Places, Wait
from colibri.rpc.protobuf import check_implementation
from colibri.rpc.reading import Size
from colibri.rpc.refusals import Refusals
from colibri.security.access import Access, Rules
from colibri.security.bind import checked_bind, is_local
from colibri.security.roles import Scope
from colibri.security.server import ServerSecurity
from colibri.security.server_certificates import ServerCertificates
from colibri.security.tokens import TokenFile

#: Threads beyond the places: they refuse calls, and stand in for those that wake from a place they had to give up.
_SPARE_THREADS = 4
#: Health checks at once, and watchers. Who owes a message, or watches, makes room for the next.
_CHECKS = 8
_WATCHERS = 16
_SWEEP_S = 0.5


@dataclass(frozen=True, slots=True)
class Service:
    """A gRPC service.

    name: full name, such as 'colibri.v1.Expert'.
    register: adds its handlers to a grpc.Server.
    scope: what its callers must be allowed to do.
    quiet: names of methods whose callers may send nothing for as long as they like.
    sizes: name of a unary method -> what it takes; a method without an entry takes little.
    """

    name: str
    register: Callable[[grpc.Server], object]
    scope: Scope = Scope.CLIENT
    quiet: frozenset[str] = frozenset()
    sizes: Mapping[str, Size] = field(default_factory=dict)


class RpcServer:
    """A gRPC server bound to its address. Its health is NOT_SERVING until set_serving(True).

    offer: one line for people: what may be called here, and by whom.
    """

    def __init__(
        self,
        server: grpc.Server,
        target: str,
        offer: str,
        statuses: health.Health,
        lanes: Sequence[Lane],
        refusals: Refusals,
        door: Door,
    ) -> None:
        self._server = server
        self._target = target
        self.offer = offer
        self._statuses = statuses
        self._lanes = lanes
        self._refusals = refusals
        self._door = door
        self._ended = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="colibri-places", daemon=True)

    @property
    def target(self) -> str:
        """The address for clients, with the port that was taken."""
        return self._target

    def start(self) -> None:
        self._door.open()
        self._server.start()
        self._sweeper.start()

    def set_serving(self, serving: bool) -> None:
        """Sets the health of the whole server ('') and of each of its services."""
        self._statuses.set_serving(serving)

    def stop(self, grace_s: float) -> bool:
        """Turns health to NOT_SERVING, takes no new calls, and cancels running ones after `grace_s` seconds.

        Returns whether everything had ended within `grace_s` and two seconds.
        """
        self.set_serving(False)
        self._statuses.close()
        ended = self._server.stop(grace_s).wait(grace_s + 2.0)
        self._ended.set()
        for pool in (self._door, *(lane.pool for lane in self._lanes)):
            pool.shutdown(wait=False, cancel_futures=True)
        return ended

    def _sweep(self) -> None:
        while not self._ended.wait(_SWEEP_S):
            self._refusals.tell_late()
            for lane in self._lanes:
                lane.places.sweep()


def build_server(
    services: Sequence[Service],
    *,
    listen: str,
    max_calls: int = 64,
    options: Options | None = None,
    name: str = "server",
    security: ServerSecurity | None = None,
    bounds: Bounds | None = None,
) -> RpcServer:
    """Returns a bound server that is not started yet.

    listen: "unix:/path" or "host:port" (port 0: a free one).
    max_calls: calls that may run at once, open streams included; one more is refused with RESOURCE_EXHAUSTED.
    options: default server_options().
    name: of this process, in refusals.
    security: None: none, for addresses that only this machine reaches.
    bounds: how long callers may keep the server waiting.

    Raises ConfigError if the address cannot be bound, if others can reach it and TLS or callers' credentials are
    missing, or if protobuf is the slow implementation in Python.
    """
    check_implementation()
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
        own_user=local and not security.callers_known,
    )
    credentials = _credentials(security)
    names = [service.name for service in services]
    common = _lane("call", name, max_calls, bounds, Access(name, rules))
    checks = _lane("health", name, _CHECKS, bounds)
    watches = _lane("watch", name, _WATCHERS, bounds, rest=Wait.IDLE)
    prefix = f"/{health.SERVICE_NAME}"
    refusals = Refusals((bounds or Bounds()).late_s)
    door = Door()
    server = grpc.server(
        common.pool,
        interceptors=[
            Guard(
                name,
                common,
                {f"{prefix}/Check": checks, f"{prefix}/Watch": watches},
                frozenset(f"/{service.name}/{method}" for service in services for method in service.quiet),
                refusals,
                door,
                {
                    f"/{service.name}/{method}": size
                    for service in services
                    for method, size in service.sizes.items()
                },
            )
        ],
        options=server_options() if options is None else options,
    )
    statuses = health.Health(["", *names])
    health_pb2_grpc.add_HealthServicer_to_server(statuses, server)
    for service in services:
        service.register(server)
    if local if security.reflection is None else security.reflection:
        reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    try:
        with _closed_to_others() if isinstance(address, UnixAddress) else contextlib.nullcontext():
            port = (
                server.add_insecure_port(str(address))
                if credentials is None
                else server.add_secure_port(str(address), credentials)
            )
    except RuntimeError as error:
        raise ConfigError("listen", "an address that can be bound", listen) from error
    target = str(TcpAddress(address.host, port) if isinstance(address, TcpAddress) else address)
    told = offer(target, names, security, local=local)
    return RpcServer(server, target, told, statuses, [common, checks, watches], refusals, door)


@contextlib.contextmanager
def _closed_to_others() -> Iterator[None]:
    """Closes a unix socket to other users from the moment it is bound: whoever may write to it can connect.

    Sets the umask of the whole process for a moment, so files made meanwhile are closed to others too.
    """
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _lane(
    kind: str,
    name: str,
    limit: int,
    bounds: Bounds | None,
    access: Access | None = None,
    rest: Wait = Wait.NOTHING,
) -> Lane:
    pool = ThreadPoolExecutor(limit + _SPARE_THREADS, thread_name_prefix=f"colibri-{kind}")
    return Lane(Places(name, limit, bounds), pool, access, rest)


def _credentials(security: ServerSecurity) -> grpc.ServerCredentials | None:
    if security.tls_cert is None or security.tls_key is None:
        return None
    return ServerCertificates(security.tls_cert, security.tls_key, security.client_ca).credentials()
