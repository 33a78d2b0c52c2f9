"""What a server is protected with, as one value. Free of gRPC: a worker reads it before it pins itself."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from colibri.errors import ConfigError
from colibri.security.plane_secret import PlaneSecret


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """tls_cert, tls_key: of this server, PEM: it speaks TLS. client_ca: callers must show a certificate of these CAs.
    tokens: file of the bearer tokens that callers must show one of. secret: of a worker's deployment, which its callers
    must show. insecure: others may reach it though strangers
    are not kept out. reflection: None: on, unless other machines reach the server. Raises ConfigError, naming the
    option, for values that make no sense together."""

    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    tokens: Path | None = None
    insecure: bool = False
    reflection: bool | None = None
    secret: PlaneSecret | None = None

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            missing, given = (
                ("--tls-cert", "--tls-key") if self.tls_cert is None else ("--tls-key", "--tls-cert")
            )
            raise ConfigError(missing, f"a file, with {given}", "none")
        if self.client_ca is not None and self.tls_cert is None:
            raise ConfigError("--tls-cert", "a file, with --client-ca", "none")
        if self.tokens is not None and self.secret is not None:
            raise ConfigError("--tokens", "none beside a worker's secret", "both")

    @property
    def callers_known(self) -> bool:
        return self.tokens is not None or self.client_ca is not None or self.secret is not None

    def quieten(self, environ: MutableMapping[str, str]) -> None:
        """gRPC writes a line for each handshake that fails: strangers would fill a log. To be called before gRPC is
        imported; a level that is set already stays."""
        if self.tls_cert is not None:
            environ.setdefault("GRPC_VERBOSITY", "ERROR")
