"""Typed errors shared by all parts: each carries a code, whether a retry can help, and the peer if one is involved.

Codes are gRPC's status names, so that a servicer can turn any of these into a status without a table of its own.
"""

from __future__ import annotations

import enum
import re

#: Control and bidirectional-override characters, line separators, lone surrogates: names from files and requests
#: reach terminals and logs, where these would forge lines, and gRPC, which takes no surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MAX_MESSAGE = 2000
_MAX_GOT = 200


class Code(enum.Enum):
    """Status names of gRPC (https://grpc.io/docs/guides/status-codes/)."""

    CANCELLED = "CANCELLED"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"
    DATA_LOSS = "DATA_LOSS"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"


class ColibriError(Exception):
    """Base of every error that Colibri raises on purpose.

    retryable: whether the same call may succeed later.
    retry_after_s: advised wait, seconds; None: no advice.
    peer: the process on the other side of a failed wait or link.

    The message is one line of at most 2,000 characters, whatever it quotes.
    """

    code = Code.INTERNAL
    retryable = False

    def __init__(self, message: str, *, peer: str | None = None, retry_after_s: float | None = None) -> None:
        self.message = _one_line(message)
        super().__init__(self.message)
        self.peer = peer
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles the whole error, whatever its constructor takes."""
        return _revived, (type(self), self.args, dict(self.__dict__))


def _revived(kind: type[ColibriError], args: tuple[object, ...], fields: dict[str, object]) -> ColibriError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


class InvalidInput(ColibriError):
    """A value from outside is wrong; names the field, what was expected and what came."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, field: str, expected: str, got: object) -> None:
        super().__init__(f"{field}: expected {expected}, got {_cut(str(got), _MAX_GOT)}")
        self.field = field
        self.expected = expected


class ConfigError(InvalidInput):
    """A flag, environment variable or configuration key is wrong."""


class CheckpointError(ColibriError):
    """A checkpoint's file is missing, damaged, or describes a model that is not supported."""

    code = Code.FAILED_PRECONDITION

    @classmethod
    def of(cls, where: object, field: str, expected: str, got: object) -> CheckpointError:
        """Returns an error in the form that all of these have.

        where: the file, or whatever holds the field.
        field: empty if the whole file is at fault.
        """
        label = f"{where}: {_cut(field, _MAX_GOT)}" if field else str(where)
        return cls(f"{label}: expected {expected}, got {_cut(str(got), 2 * _MAX_GOT)}")


class WeightsUnavailable(ColibriError):
    """Weights could not be fetched. What arrived is kept, and a retry resumes."""

    code = Code.UNAVAILABLE
    retryable = True


class NumericsMismatch(ColibriError):
    """Two processes would compute different bits; both values are named and the handshake is refused."""

    code = Code.FAILED_PRECONDITION


class Busy(ColibriError):
    """A bounded queue is full."""

    code = Code.RESOURCE_EXHAUSTED
    retryable = True


class OverBudget(ColibriError):
    """It would take more memory than was granted. Names both."""

    code = Code.RESOURCE_EXHAUSTED


class DeadlineExpired(ColibriError):
    """The caller's time is over, and the work was dropped."""

    code = Code.DEADLINE_EXCEEDED


class Cancelled(ColibriError):
    """The caller took the request back."""

    code = Code.CANCELLED


class PinningRefused(ColibriError):
    """A worker's CPUs, memory and GPU lie apart, or its CPUs are another worker's; says where, and what to do."""

    code = Code.FAILED_PRECONDITION


class WorkerLost(ColibriError):
    """A worker died, hung up or answered nonsense; other requests go on."""

    code = Code.UNAVAILABLE
    retryable = True


class StaleEpoch(ColibriError):
    """The sender routed by a placement that the worker no longer serves."""

    code = Code.ABORTED
    retryable = True


class ExpertNotLoaded(ColibriError):
    """The worker does not hold an expert that it was asked for."""

    code = Code.FAILED_PRECONDITION
    retryable = True


class FrameError(ColibriError):
    """A data-plane message is malformed or its checksum is wrong; the stream that brought it is not read again."""

    code = Code.DATA_LOSS
    retryable = True


class BadRow(ColibriError):
    """A row holds NaN or Inf; only the request that brought it fails."""

    code = Code.INVALID_ARGUMENT


class ShuttingDown(ColibriError):
    """The server drains: running answers may end; send new ones elsewhere."""

    code = Code.UNAVAILABLE
    retryable = True


class DuplicateRequest(ColibriError):
    """A request of that id is still running."""

    code = Code.ALREADY_EXISTS


class Unauthenticated(ColibriError):
    """The caller showed no token that the server accepts."""

    code = Code.UNAUTHENTICATED


class PermissionDenied(ColibriError):
    """The caller is known but may not do this."""

    code = Code.PERMISSION_DENIED


class TlsError(ColibriError):
    """No secure connection is possible, and a retry changes nothing: a certificate is wrong or missing, or only one
    side speaks TLS.
    """

    code = Code.UNAVAILABLE


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _one_line(text: str) -> str:
    return _UNPRINTABLE.sub(lambda found: repr(found.group())[1:-1], _cut(text, _MAX_MESSAGE))
