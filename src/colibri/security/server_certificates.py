"""Give gRPC the certificates of a server that speaks TLS."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import grpc

from colibri.deadline import Clock
from colibri.errors import ColibriError, ConfigError
from colibri.security.certificate import Facts, KeyPair, facts_of, read_authorities, read_pair
from colibri.security.secret_file import Stamp, stamp
from colibri.security.tokens import iso

_log = logging.getLogger(__name__)

#: How often the files are looked at, seconds; a connection that comes in between gets what was there.
LOOK_S = 1.0
#: A certificate that ends within this many days is told.
WARN_DAYS = 14


class ServerCertificates:
    """The files of a server that speaks TLS, read again when they change: a new connection gets their present content.

    An unusable file is reported once and changes nothing.

    clock: monotonic seconds.
    now: seconds of the epoch.
    """

    def __init__(
        self,
        certificate: Path,
        key: Path,
        client_ca: Path | None,
        clock: Clock = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError for a certificate that no caller would accept."""
        self._certificate = certificate
        self._key = key
        self._client_ca = client_ca
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._looked = clock()
        self._first = self._load()

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.dynamic_ssl_server_credentials(
            self._first,
            self._changed,  # type: ignore[arg-type]  # its stub forgets that None means no change
            require_client_authentication=self._client_ca is not None,
        )

    def _changed(self) -> grpc.ServerCertificateConfiguration | None:
        # On a thread of grpc's, before each handshake. None: as before.
        with self._lock:
            now = self._clock()
            if now - self._looked < LOOK_S:
                return None
            self._looked = now
            stamps = self._look()
            if stamps == self._stamps:
                return None
            self._stamps = stamps
        try:
            found = self._load()
        except ColibriError as error:
            _log.error("%s; connections get the certificate from before", error.message)
            return None
        _log.info("--tls-cert: %s, read again", self._certificate)
        return found

    def _look(self) -> list[Stamp | None]:
        paths = [self._certificate, self._key, *([self._client_ca] if self._client_ca is not None else [])]
        return [stamp(path) for path in paths]

    def _load(self) -> grpc.ServerCertificateConfiguration:
        pair = read_pair(self._certificate, self._key, "--tls-cert", "--tls-key")
        check_valid(pair, self._certificate, "--tls-cert", self._now(), as_server=True)
        authorities = None if self._client_ca is None else read_authorities(self._client_ca, "--client-ca")
        return grpc.ssl_server_certificate_configuration([(pair.key, pair.certificate)], authorities)


def check_valid(pair: KeyPair, path: Path, field: str, now: float, *, as_server: bool) -> Facts:
    """Raises ConfigError if no peer would accept the certificate now, whatever CAs it trusts; warns in the log if it
    ends soon.
    """
    try:
        facts = facts_of(pair)
    except ssl.SSLError:
        raise ConfigError(field, "a certificate for servers or clients", f"{path}, for neither") from None
    if not (facts.may_serve if as_server else facts.may_call):
        side, other = ("servers", "clients") if as_server else ("clients", "servers")
        raise ConfigError(field, f"a certificate for {side}", f"{path}, for {other} only")
    if now >= facts.not_after:
        raise ConfigError(
            field, "a certificate that is valid now", f"{path}, which expired at {iso(facts.not_after)}"
        )
    if now < facts.not_before:
        raise ConfigError(
            field, "a certificate that is valid now", f"{path}, which is not before {iso(facts.not_before)}"
        )
    if facts.not_after - now < WARN_DAYS * 86400:
        _log.warning("%s: %s expires at %s: `colibri certs renew`", field, path, iso(facts.not_after))
    return facts
