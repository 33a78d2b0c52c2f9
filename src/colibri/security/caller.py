"""Tell the callers of a service apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import grpc

from colibri.security.access import AUTHORIZATION


def caller_of(context: grpc.ServicerContext) -> str:
    """Returns a digest of the call's token and certificate; empty if it shows neither.

    `security.access` has judged before whether the server accepts them. So to be taken for another caller, one must
    show that caller's credentials.
    """
    metadata: Iterable[tuple[str, str | bytes]] = context.invocation_metadata() or ()
    identity: Mapping[str, Any] = context.auth_context() or {}
    shown = [value for key, value in metadata if key == AUTHORIZATION]
    shown += identity.get("x509_pem_cert", ())
    if not shown:
        return ""
    digest = hashlib.sha256()
    for value in shown:
        raw = value.encode() if isinstance(value, str) else bytes(value)
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()
