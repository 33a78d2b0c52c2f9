"""Where a client's calls go, and what they carry."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import grpc

from colibri.address import parse_address
from colibri.errors import ColibriError
from colibri.grpc_options import Options, channel_options
from colibri.rpc.diagnose import failure, may_be_tls
from colibri.rpc.status import from_rpc_error
from colibri.security.channel import PLAIN, ChannelSecurity, Metadata

#: A name is resolved again so often at most; gRPC's own 30 s would hide a server that came back elsewhere.
_RESOLVE_AGAIN_MS = 1000


def client_options() -> Options:
    """Returns the options of all channels, and resolves names again often enough to find a server that came back
    elsewhere.
    """
    return [*channel_options(), ("grpc.dns_min_time_between_resolutions_ms", _RESOLVE_AGAIN_MS)]


@dataclass(frozen=True, slots=True)
class Server:
    """The server that a client calls. target: as gRPC takes it."""

    target: str
    security: ChannelSecurity

    @classmethod
    def of(cls, target: str, security: ChannelSecurity | None) -> Server:
        """Raises ConfigError for a bad address, useless files, or a token that would travel in clear."""
        server = cls(str(parse_address(target, "target")), security or PLAIN)
        server.security.check(server.target)
        return server

    def metadata(self) -> Metadata | None:
        """Returns the metadata of each call. Raises ConfigError if the token's file no longer holds one."""
        return self.security.metadata()

    def error(self, error: grpc.RpcError, *, waited: bool = False) -> ColibriError:
        """Returns the typed error of a failed call. waited: the call was to wait for a connection."""
        return failure(error, self.target, self.target, self.security, waited=waited)

    async def error_aio(self, error: grpc.RpcError, *, waited: bool = False) -> ColibriError:
        """Does as `error`, but may look at the server once more, so it must not run in an event loop."""
        if may_be_tls(error, waited=waited):
            return await asyncio.to_thread(self.error, error, waited=waited)
        return from_rpc_error(error, self.target)
