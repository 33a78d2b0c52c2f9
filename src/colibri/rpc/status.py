"""Turn typed errors into gRPC statuses and back: one table for all servicers and clients.

The code is the error's own; the details are its message. Trailing metadata carries the rest: `colibri-error` (class
name), `colibri-retryable` ("0" or "1"), `colibri-retry-after-ms` and `colibri-peer`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NoReturn

import grpc
import grpc.aio

from colibri import errors
from colibri.errors import Code, ColibriError
from colibri.rpc.plain_words import plain_words
from colibri.security.public_text import public_text

_log = logging.getLogger(__name__)

ERROR_KEY = "colibri-error"
RETRYABLE_KEY = "colibri-retryable"
RETRY_AFTER_KEY = "colibri-retry-after-ms"
PEER_KEY = "colibri-peer"

_CODE: dict[Code, grpc.StatusCode] = {code: grpc.StatusCode[code.value] for code in Code}
_BY_STATUS = {status: code for code, status in _CODE.items()}
#: Classes that a status may become again.
_CLASSES = {
    cls.__name__: cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, ColibriError)
}
#: What a bare gRPC status of a foreign or dying peer stands for.
_BY_CODE: dict[grpc.StatusCode, type[ColibriError]] = {
    grpc.StatusCode.CANCELLED: errors.Cancelled,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidInput,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExpired,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.Busy,
    grpc.StatusCode.UNAVAILABLE: errors.WorkerLost,
    grpc.StatusCode.DATA_LOSS: errors.FrameError,
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
}
#: gRPC refuses metadata above 8 KiB; each byte of the details may travel percent-encoded, three times as long.
_MAX_DETAILS_BYTES = 1000


def metadata_of(error: ColibriError) -> tuple[tuple[str, str], ...]:
    """Returns the trailing metadata of an error."""
    items = [(ERROR_KEY, type(error).__name__), (RETRYABLE_KEY, "1" if error.retryable else "0")]
    if error.retry_after_s is not None:
        items.append((RETRY_AFTER_KEY, str(max(0, round(error.retry_after_s * 1000)))))
    if error.peer is not None:
        items.append((PEER_KEY, _ascii(public_text(error.peer))))
    return tuple(items)


def abort(context: grpc.ServicerContext, error: ColibriError) -> NoReturn:
    """Ends the call with the error's status. Its text leaves out what strangers must not read."""
    context.abort(*set_error(context, error))


def set_error(context: grpc.ServicerContext, error: ColibriError) -> tuple[grpc.StatusCode, str]:
    """Sets the error's status as abort does, but lets the call go on until its handler ends it.

    Returns code and details.
    """
    context.set_trailing_metadata(metadata_of(error))
    told = public_text(error.message)
    # What a caller itself sent may be quoted in an InvalidInput, and is not worth a line.
    if told != error.message and not isinstance(error, errors.InvalidInput):
        _log.warning("told as %r: %s", told, error.message)
    text = told.encode()
    if len(text) > _MAX_DETAILS_BYTES:
        text = text[: _MAX_DETAILS_BYTES - 3] + b"..."
    details = text.decode(errors="ignore")
    context.set_code(_CODE[error.code])
    context.set_details(details)
    return _CODE[error.code], details


def from_rpc_error(error: grpc.RpcError, peer: str) -> ColibriError:
    """Returns the typed error of a failed call.

    peer: who was called. If the server blames another process in `colibri-peer`, that name counts instead.
    """
    if not isinstance(error, (grpc.Call, grpc.aio.AioRpcError)):
        return errors.WorkerLost(f"{peer}: call failed: {error}", peer=peer)
    return from_status(error.code(), error.details() or "", error.trailing_metadata() or (), peer)


def from_status(
    code: grpc.StatusCode, details: str, metadata: Iterable[tuple[str, str | bytes]], peer: str
) -> ColibriError:
    """Does as from_rpc_error, from the parts of a status."""
    found = {key: value for key, value in metadata if isinstance(value, str)}
    cls = _CLASSES.get(found.get(ERROR_KEY, ""))
    if cls is None:
        cls = _BY_CODE.get(code, ColibriError)
        if ERROR_KEY not in found:
            details = f"{peer}: {plain_words(code, details)}"
    after = found.get(RETRY_AFTER_KEY, "")
    # Not by the class's own constructor: InvalidInput's takes the parts that its message was made of.
    result = cls.__new__(cls)
    ColibriError.__init__(
        result,
        details,
        peer=found.get(PEER_KEY, peer),
        retry_after_s=int(after) / 1000 if after.isdecimal() else None,
    )
    if isinstance(result, errors.InvalidInput):
        result.field, _, result.expected = details.partition(": ")
    result.code = _BY_STATUS.get(code, Code.INTERNAL)
    if RETRYABLE_KEY in found:
        result.retryable = found[RETRYABLE_KEY] == "1"
    return result


def _ascii(text: str) -> str:
    # gRPC drops a call whose metadata values hold anything but printable ASCII.
    return "".join(c if " " <= c <= "~" else "?" for c in text[:200])
