"""Messages stay one bounded line, whatever was quoted in them."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.errors import (
    Busy,
    CheckpointError,
    ColibriError,
    ConfigError,
    DeadlineExpired,
    InvalidInput,
    WorkerLost,
)


@given(st.text(max_size=50))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    message = ColibriError(f"before {text} after").message
    assert message.startswith("before ")
    assert message.endswith(" after")
    assert message.splitlines() == [message]
    assert "\x1b" not in message
    message.encode()  # no lone surrogate


@pytest.mark.parametrize("text", ["plain", "Zürich \U0001f426", "tab-free", "a: b, c"])
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert ColibriError(text).message == str(ColibriError(text)) == text


def test_long_values_are_cut_and_the_rest_is_kept() -> None:
    error = InvalidInput("field", "short", "x" * 10_000)
    assert error.message == f"field: expected short, got {'x' * 197}..."
    error2 = CheckpointError.of("file", "n" * 10_000, "short", "y" * 10_000)
    assert error2.message == f"file: {'n' * 197}...: expected short, got {'y' * 397}..."
    assert len(ColibriError("z" * 10_000).message) == 2000


def test_a_file_as_a_whole_has_no_field() -> None:
    assert CheckpointError.of("file", "", "a", "b").message == "file: expected a, got b"


def test_errors_travel_between_processes_whole() -> None:
    for error in (
        WorkerLost("w0 is gone", peer="w0"),
        Busy("full", peer="w1", retry_after_s=2.0),
        ConfigError("--listen", "host:port", "x"),
        DeadlineExpired("late", peer="ray"),
    ):
        found = pickle.loads(pickle.dumps(error))
        assert type(found) is type(error)
        assert vars(found) == vars(error)
        assert str(found) == str(error)
