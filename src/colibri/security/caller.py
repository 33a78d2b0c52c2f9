"""Who calls, as far as a service has to tell its callers apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import grpc

from colibri.security.access import AUTHORIZATION


def caller_of(context: grpc.ServicerContext) -> str:
    """A digest of what the call shows: its token, its certificate. Empty where it shows neither.

    Whether the server takes them is judged before (`security.access`); no one can be taken for another caller without
    showing that one's.
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
