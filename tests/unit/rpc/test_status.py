"""Every typed error survives the way through a gRPC status."""

from __future__ import annotations

import grpc
import pytest

from colibri import errors
from colibri.errors import Code, ColibriError, InvalidInput, WorkerLost
from colibri.rpc.status import from_rpc_error, from_status, metadata_of

CLASSES = [
    cls
    for cls in vars(errors).values()
    if isinstance(cls, type) and issubclass(cls, ColibriError) and not issubclass(cls, InvalidInput)
]


def through(error: ColibriError, peer: str = "server") -> ColibriError:
    return from_status(grpc.StatusCode[error.code.value], error.message, metadata_of(error), peer)


@pytest.mark.parametrize("cls", CLASSES)
def test_class_message_and_advice(cls: type[ColibriError]) -> None:
    for error in (cls("what happened"), cls("what happened", peer="w3", retry_after_s=0.25)):
        got = through(error)
        assert type(got) is cls
        assert (got.message, got.code, got.retryable) == (error.message, error.code, error.retryable)
        assert got.retry_after_s == error.retry_after_s
        assert got.peer == (error.peer or "server")


@pytest.mark.parametrize("cls", [errors.InvalidInput, errors.ConfigError])
def test_invalid_input_keeps_its_field(cls: type[InvalidInput]) -> None:
    got = through(cls("rows", "1 to 5", 9))
    assert type(got) is cls
    assert str(got) == "rows: expected 1 to 5, got 9"
    assert got.field == "rows"


def test_an_instance_may_differ_from_its_class() -> None:
    error = ColibriError("odd")
    error.retryable = True
    error.code = Code.ABORTED
    got = through(error)
    assert (got.retryable, got.code) == (True, Code.ABORTED)


@pytest.mark.parametrize(
    ("code", "cls", "retryable"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.WorkerLost, True),
        (grpc.StatusCode.DEADLINE_EXCEEDED, errors.DeadlineExpired, False),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.Busy, True),
        (grpc.StatusCode.CANCELLED, errors.Cancelled, False),
        (grpc.StatusCode.INVALID_ARGUMENT, errors.InvalidInput, False),
        (grpc.StatusCode.UNIMPLEMENTED, ColibriError, False),
        (grpc.StatusCode.UNKNOWN, ColibriError, False),
    ],
)
def test_a_bare_status_of_anyone(code: grpc.StatusCode, cls: type[ColibriError], retryable: bool) -> None:
    got = from_status(code, "details", (), "worker w1")
    assert type(got) is cls
    assert (got.retryable, got.peer) == (retryable, "worker w1")
    assert got.message == f"worker w1: {code.name}: details"


def test_metadata_that_lies_is_survived() -> None:
    metadata: list[tuple[str, str | bytes]] = [
        ("colibri-error", "SystemExit"),
        ("colibri-retry-after-ms", "soon"),
        ("colibri-retryable", "x"),
        ("other-bin", b"\xff"),
    ]
    got = from_status(grpc.StatusCode.INTERNAL, "details", metadata, "p")
    assert type(got) is ColibriError
    assert (got.retry_after_s, got.retryable) == (None, False)


def test_names_are_made_safe_for_metadata() -> None:
    values = dict(metadata_of(WorkerLost("x", peer="größe\n" + "y" * 500)))
    assert values["colibri-peer"].startswith("gr??e?y")
    assert len(values["colibri-peer"]) == 200


def test_an_error_that_is_no_call() -> None:
    got = from_rpc_error(grpc.RpcError("channel closed"), "worker w1")
    assert isinstance(got, WorkerLost)
    assert (got.message, got.peer) == ("worker w1: call failed: channel closed", "worker w1")
