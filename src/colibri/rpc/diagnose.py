"""Find out why a connection failed.

gRPC says UNAVAILABLE both of a host that is down and of a certificate that has expired. So the same connection is
tried
once more with the ssl module, which says what is wrong.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable

import grpc
import grpc.aio

from colibri.address import UnixAddress, parse_address
from colibri.errors import ColibriError, ConfigError, TlsError
from colibri.rpc.status import ERROR_KEY, from_rpc_error
from colibri.security.certificate import KeyPair, client_context, facts_of, why_refused
from colibri.security.channel import ChannelSecurity, material
from colibri.security.tokens import iso

#: Bound of the second try, seconds.
PROBE_S = 2.0
#: What an HTTP/2 client says first (RFC 9113, 3.4): the preface and an empty SETTINGS frame.
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
#: Nobody listens: there is nothing to ask.
_NOBODY = ("Connection refused", "No such file", "DNS resolution failed", "Domain name not found")


def failure(
    error: grpc.RpcError, peer: str, target: str, security: ChannelSecurity, *, waited: bool = False
) -> ColibriError:
    """Returns the error of from_rpc_error, or a TlsError that says what is wrong if another attempt would fail the
    same way.

    waited: the call was to wait for a connection. Takes at most PROBE_S seconds.
    """
    typed = from_rpc_error(error, peer)
    return explained(typed, target, security) if may_be_tls(error, waited=waited) else typed


def may_be_tls(error: grpc.RpcError, *, waited: bool = False) -> bool:
    """Whether a call failed before any server answered, or while it waited for one."""
    if not isinstance(error, (grpc.Call, grpc.aio.AioRpcError)):
        return False
    if any(key == ERROR_KEY for key, _ in error.trailing_metadata() or ()):
        return False
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return waited
    text = error.details() or ""
    # A connection that was there and broke says nothing of connecting ("Socket closed").
    return (
        error.code() is grpc.StatusCode.UNAVAILABLE
        and "connect" in text
        and not any(word in text for word in _NOBODY)
    )


def explained(
    error: ColibriError, target: str, security: ChannelSecurity, timeout_s: float = PROBE_S
) -> ColibriError:
    """Returns `error`, or a TlsError for the same peer."""
    try:
        reason = why_no_connection(target, security, timeout_s)
    except ConfigError:
        return error
    return error if reason is None else TlsError(f"{target}: {reason}", peer=error.peer)


def why_no_connection(target: str, security: ChannelSecurity, timeout_s: float = PROBE_S) -> str | None:
    """Returns what TLS has against a connection; None if TLS is not the reason, or this is not known within
    `timeout_s` seconds.
    """
    end = time.monotonic() + timeout_s

    def connect() -> socket.socket:
        return _connect(target, max(0.05, end - time.monotonic()))

    if security.tls_ca is None:
        return _why_plain_fails(connect)
    authorities, pair = material(security)
    context = client_context(authorities, pair)
    host = security.server_name(target)
    try:
        with connect() as raw, context.wrap_socket(raw, server_hostname=host) as secured:
            secured.sendall(_HELLO)
            if secured.recv(1):
                return None
    except ssl.SSLCertVerificationError as error:
        return _about_server(str(error.verify_message).rstrip("."), host)
    except ssl.SSLError as error:
        if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
            return "this client speaks TLS (--tls-ca), the server does not"
        return f"TLS: {_words(error.reason)}" if error.reason else None
    except ConnectionResetError:
        pass  # as an end: so a server ends a handshake that it does not like
    except OSError:
        return None
    return _about_client(pair, authorities)


def _why_plain_fails(connect: Callable[[], socket.socket]) -> str | None:
    """Returns a reason if the server answers to TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    with contextlib.suppress(OSError), connect() as raw, context.wrap_socket(raw):
        return "the server speaks TLS, this client does not: give its CA with --tls-ca"
    return None


def _about_server(message: str, host: str) -> str:
    if "mismatch" in message:
        return f"the server's certificate is not for {host}: --tls-name says which name it must be for"
    if "expired" in message:
        return "the server's certificate has expired"
    if "not yet valid" in message:
        return "the server's certificate is not valid yet (or this machine's clock is wrong)"
    if "issuer" in message or "self-signed" in message or "self signed" in message:
        return "the server's certificate is of no CA in --tls-ca"
    if "purpose" in message:
        return "the server's certificate is not for servers"
    return f"the server's certificate is refused: {message}"


def _about_client(pair: KeyPair | None, authorities: bytes) -> str:
    """Explains a connection that the server ended after a handshake that was fine on this side; the server does not
    say why.
    """
    if pair is None:
        return "the server ended the TLS handshake: it demands a client certificate (--tls-cert, --tls-key)"
    facts = facts_of(pair)
    if time.time() >= facts.not_after:
        return f"the server ended the TLS handshake: the certificate in --tls-cert expired at {iso(facts.not_after)}"
    if not facts.may_call:
        return "the server ended the TLS handshake: the certificate in --tls-cert is not for clients"
    told = "the server ended the TLS handshake: it does not take the certificate in --tls-cert"
    reason = why_refused(pair, authorities, as_server=False)
    return told if reason is None else f"{told}, which is of no CA in --tls-ca either"


def _connect(target: str, timeout_s: float) -> socket.socket:
    address = parse_address(target, "target")
    if not isinstance(address, UnixAddress):
        return socket.create_connection((address.host.strip("[]"), address.port), timeout_s)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.settimeout(timeout_s)
        found.connect(address.path)
    except BaseException:
        found.close()
        raise
    return found


def _words(reason: str) -> str:
    return reason.lower().replace("_", " ")
