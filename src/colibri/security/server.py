"""How a server is protected, as one value. Free of gRPC: a worker reads it before it pins itself."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

from colibri.errors import ConfigError
from colibri.security.plane_secret import PlaneSecret


@dataclass(frozen=True, slots=True)
class ServerSecurity:
    """The protection of a server. Raises ConfigError, naming the option, for values that contradict.

    tls_cert, tls_key: of this server, PEM; given: it speaks TLS.
    client_ca: callers must show a certificate of these CAs.
    tokens: file of bearer tokens; callers must show one of them.
    secret: of a worker's deployment; its callers must show it.
    insecure: others may reach it although strangers are not kept out.
    reflection: None: on, unless other machines can reach the server.
    """

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
        """Keeps gRPC from logging each failed handshake, with which strangers could fill a log.

        Call it before gRPC is imported. A level that is already set stays.
        """
        if self.tls_cert is not None:
            environ.setdefault("GRPC_VERBOSITY", "ERROR")
