"""Judge certificates and keys with the ssl module, so that a server's start can say what a caller's failed connection
could not.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colibri.errors import ConfigError
from colibri.security.roles import Role, roles_in
from colibri.security.secret_file import read_file

#: X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which the ssl module has no name for.
_NO_CHECK_TIME = 0x200000


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its key.

    certificate: PEM, the holder's first, then the chain to its CA.
    key: PEM, never to be shown.
    """

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(...)"


@dataclass(frozen=True, slots=True)
class Facts:
    """What a holder's certificate says.

    names: DNS names and addresses.
    not_before, not_after: seconds of the epoch.
    may_serve, may_call: what it may be used for.
    """

    names: tuple[str, ...]
    roles: tuple[Role, ...]
    not_before: float
    not_after: float
    may_serve: bool
    may_call: bool


def read_pair(certificate: Path, key: Path, certificate_field: str, key_field: str) -> KeyPair:
    """Reads a certificate and its key.

    Raises ConfigError, naming the field, if a file is unreadable, open to others or not PEM, or the key does not
    fit.
    """
    pair = KeyPair(
        read_file(certificate, certificate_field, secret=False), read_file(key, key_field, secret=True)
    )
    if b"-----BEGIN CERTIFICATE-----" not in pair.certificate:
        raise ConfigError(certificate_field, "a certificate in PEM", certificate)
    if b"PRIVATE KEY-----" not in pair.key:
        raise ConfigError(key_field, "a private key in PEM", key)
    if b"ENCRYPTED" in pair.key:
        raise ConfigError(key_field, "a private key without a pass phrase", f"{key}, which has one")
    try:
        _use(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), pair)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(key_field, f"the key of {certificate}", f"{key}, another one's") from None
        raise ConfigError(
            certificate_field, "a certificate and its key in PEM", f"{certificate} and {key} ({error.reason})"
        ) from None
    return pair


def read_authorities(path: Path, field: str) -> bytes:
    """Reads certificates of CAs, PEM. Raises ConfigError."""
    pem = read_file(path, field, secret=False)
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=pem.decode("ascii"))
        if not context.get_ca_certs():
            raise ConfigError(field, "the certificate of a CA", f"{path}, which is none")
    except (ssl.SSLError, ValueError):
        raise ConfigError(field, "certificates of CAs in PEM", path) from None
    return pem


def facts_of(pair: KeyPair) -> Facts:
    """Reads what the certificate says. Raises ssl.SSLError for one that may be used for neither side."""
    found: dict[bool, Mapping[str, Any]] = {}
    for as_server in (True, False):
        try:
            found[as_server] = _shown(pair, pair.certificate, as_server, check_time=False)
        except ssl.SSLCertVerificationError:
            continue
    if not found:
        raise ssl.SSLError("a certificate that is for neither servers nor clients")
    shown = next(iter(found.values()))
    names = [(str(kind), str(name)) for kind, name in shown.get("subjectAltName", ())]
    return Facts(
        names=tuple(name for kind, name in names if kind in ("DNS", "IP Address")),
        roles=tuple(roles_in(name for kind, name in names if kind == "URI")),
        not_before=ssl.cert_time_to_seconds(shown["notBefore"]),
        not_after=ssl.cert_time_to_seconds(shown["notAfter"]),
        may_serve=True in found,
        may_call=False in found,
    )


def why_refused(pair: KeyPair, authorities: bytes, as_server: bool) -> str | None:
    """Returns, in OpenSSL's words, why a peer that trusts `authorities` would refuse the pair; None: it would not."""
    try:
        _shown(pair, authorities, as_server, check_time=True)
    except ssl.SSLCertVerificationError as error:
        return str(error.verify_message)
    except ssl.SSLError as error:
        return str(error.reason or error)
    return None


def client_context(authorities: bytes, pair: KeyPair | None) -> ssl.SSLContext:
    """Returns the context for connecting to a gRPC server."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authorities.decode("ascii"))
    context.set_alpn_protocols(["h2"])
    if pair is not None:
        _use(context, pair)
    return context


def _shown(pair: KeyPair, trusted: bytes, as_server: bool, *, check_time: bool) -> Mapping[str, Any]:
    """Returns what the peer sees of the certificate, from a handshake in memory. Raises ssl.SSLError."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    _use(server, pair)
    _use(client, pair)
    judge = client if as_server else server
    judge.verify_mode = ssl.CERT_REQUIRED
    judge.load_verify_locations(cadata=trusted.decode("ascii"))
    if not check_time:
        # The certificate vouches for itself here: it is to be read, whoever issued it and whenever.
        flags = int(judge.verify_flags) | int(ssl.VERIFY_X509_PARTIAL_CHAIN) | _NO_CHECK_TIME
        judge.verify_flags = ssl.VerifyFlags(flags)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    done = [False, False]
    for _ in range(8):
        for index, end in enumerate(ends):
            try:
                if not done[index]:
                    end.do_handshake()
                    done[index] = True
            except ssl.SSLWantReadError:
                continue
    shown = ends[0 if as_server else 1].getpeercert() if all(done) else None
    if not shown:
        raise ssl.SSLError("the handshake did not end")
    return shown


def _use(context: ssl.SSLContext, pair: KeyPair) -> None:
    # The ssl module takes names of files only; a nameless one holds the very bytes that gRPC gets.
    with _in_memory(pair.certificate) as certificate, _in_memory(pair.key) as key:
        # A password is asked for on the terminal unless somebody else answers.
        context.load_cert_chain(certificate, key, password=lambda: b"")


@contextmanager
def _in_memory(data: bytes) -> Iterator[str]:
    descriptor = os.memfd_create("colibri-pem", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(data)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
