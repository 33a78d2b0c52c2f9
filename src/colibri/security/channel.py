"""What a caller shows to a server, and what it demands."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import grpc
import grpc.aio

from colibri.address import UnixAddress, parse_address
from colibri.errors import ConfigError
from colibri.grpc_options import Options
from colibri.security.access import AUTHORIZATION
from colibri.security.bind import is_local
from colibri.security.certificate import KeyPair, read_authorities, read_pair
from colibri.security.plane_secret import PlaneSecret
from colibri.security.secret_file import Stamp, stamp
from colibri.security.server_certificates import check_valid
from colibri.security.show_secret import ShowSecret
from colibri.security.tokens import MAX_TOKEN, MIN_TOKEN, is_token, read_token

_log = logging.getLogger(__name__)

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ChannelSecurity:
    """The security of channels to one server, or to several of one kind. Raises ConfigError for values that
    contradict.

    tls_ca: PEM of the CAs that the server's certificate must come from; given: the channel speaks TLS.
    tls_cert, tls_key: the caller's own certificate, for servers that demand one.
    tls_name: the name that the server's certificate must have, in place of the host in its address.
    token_file: file with the caller's bearer token, read again when it changes.
    token: the token itself.
    insecure: the token may go in clear to another machine.
    secret: of the deployment whose workers these channels lead to; each call sends it by itself.

    Other files are read when a channel is made.
    """

    tls_ca: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_name: str | None = None
    token_file: Path | None = None
    token: str | None = field(default=None, repr=False)
    insecure: bool = False
    secret: PlaneSecret | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing, given = (
                ("--tls-cert", "--tls-key") if self.tls_cert is None else ("--tls-key", "--tls-cert")
            )
            raise ConfigError(missing, f"a file, with {given}", "none")
        if self.tls_ca is None and (self.tls_cert is not None or self.tls_name is not None):
            given = "--tls-cert" if self.tls_cert is not None else "--tls-name"
            raise ConfigError("--tls-ca", f"the CA of the server, with {given}", "none")
        if self.secret is not None and (self.token is not None or self.token_file is not None):
            raise ConfigError("token", "none beside a worker's secret", "both")
        if self.token is not None and self.token_file is not None:
            raise ConfigError("token", "nothing beside token_file", "both")
        if self.token is not None and not is_token(self.token):
            raise ConfigError(
                "token", f"{MIN_TOKEN} to {MAX_TOKEN} characters of a token", f"{len(self.token)} others"
            )

    def check(self, target: str) -> None:
        """Reads every file once. Raises ConfigError, naming the option, for a useless file, or if the token would go
        in clear to another machine.
        """
        if self.tls_ca is not None:
            _, pair = _read(self)
            if pair is not None and self.tls_cert is not None:
                check_valid(pair, self.tls_cert, "--tls-cert", time.time(), as_server=False)
        if self.metadata() and self.tls_ca is None and not self.insecure:
            address = parse_address(target, "target")
            if not is_local(address):
                raise ConfigError(
                    "--tls-ca",
                    f"the CA of {target}, since a token must not go there in clear (--insecure: let it)",
                    "none",
                )

    def open(self, target: str, options: Options) -> grpc.Channel:
        """Opens a channel, which connects with its first call. Raises ConfigError for files that have never been
        usable.
        """
        credentials = self._credentials()
        channel = (
            grpc.insecure_channel(target, options=options)
            if credentials is None
            else grpc.secure_channel(target, credentials, options=self._named(target, options))
        )
        return channel if self.secret is None else grpc.intercept_channel(channel, ShowSecret(self.secret))

    def open_aio(self, target: str, options: Options) -> grpc.aio.Channel:
        """Opens a channel of the running event loop to a server that is not a worker."""
        if self.secret is not None:
            raise ConfigError("secret", "none: workers are called without an event loop", "one")
        credentials = self._credentials()
        if credentials is None:
            return grpc.aio.insecure_channel(target, options=options)
        return grpc.aio.secure_channel(target, credentials, options=self._named(target, options))

    def metadata(self) -> Metadata | None:
        """Returns the metadata of a call: the token, or None. Raises ConfigError if the file no longer holds one."""
        token = self.token
        if self.token_file is not None:
            token = _token(self.token_file, stamp(self.token_file))
        return None if token is None else ((AUTHORIZATION, f"Bearer {token}"),)

    def server_name(self, target: str) -> str:
        """Returns the name that the server's certificate must have."""
        if self.tls_name is not None:
            return self.tls_name
        address = parse_address(target, "target")
        # gRPC would look for a name made of the socket's path.
        return "localhost" if isinstance(address, UnixAddress) else address.host.strip("[]").partition("%")[0]

    def _credentials(self) -> grpc.ChannelCredentials | None:
        if self.tls_ca is None:
            return None
        authorities, pair = material(self)
        return grpc.ssl_channel_credentials(
            authorities, pair.key if pair else None, pair.certificate if pair else None
        )

    def _named(self, target: str, options: Options) -> Options:
        name = self.server_name(target)
        return [*options, ("grpc.ssl_target_name_override", name)]


#: In clear and without a token: what a server of this machine, by default, is reached with.
PLAIN = ChannelSecurity()


def material(security: ChannelSecurity) -> tuple[bytes, KeyPair | None]:
    """Returns CAs and own certificate of a channel that speaks TLS.

    Files that are being replaced, and do not fit together for a moment, count once they do. Raises ConfigError for
    files that never did.
    """
    return _materials.current(security)


class _Materials:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[ChannelSecurity, tuple[list[Stamp | None], tuple[bytes, KeyPair | None]]] = {}

    def current(self, security: ChannelSecurity) -> tuple[bytes, KeyPair | None]:
        paths = [path for path in (security.tls_ca, security.tls_cert, security.tls_key) if path is not None]
        stamps = [stamp(path) for path in paths]
        with self._lock:
            known = self._known.get(security)
        if known is not None and known[0] == stamps:
            return known[1]
        try:
            found = _read(security)
        except ConfigError as error:
            if known is None:
                raise
            # Told once: it counts as looked at, until the files change again.
            _log.warning("%s; channels get what was there before", error.message)
            found = known[1]
        with self._lock:
            self._known[security] = (stamps, found)
        return found


_materials = _Materials()


def _read(security: ChannelSecurity) -> tuple[bytes, KeyPair | None]:
    if security.tls_ca is None:
        raise ConfigError("--tls-ca", "a file", "none")
    authorities = read_authorities(security.tls_ca, "--tls-ca")
    if security.tls_cert is None or security.tls_key is None:
        return authorities, None
    return authorities, read_pair(security.tls_cert, security.tls_key, "--tls-cert", "--tls-key")


@lru_cache(maxsize=64)
def _token(path: Path, seen: Stamp | None) -> str:
    return read_token(path, "--token-file")
