"""Read the small JSON files of a checkpoint folder: bounded in size, duplicate keys and NaN refused."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from colibri.errors import CheckpointError

#: Of one file: a checkpoint with 100,000 tensors has some 800,000 in a header.
MAX_VALUES = 2_000_000


def parse_object(raw: bytes, what: str) -> dict[str, Any]:
    """Returns a UTF-8 JSON object. Raises CheckpointError, naming `what`, for anything else and for duplicate keys."""
    # Each value takes some 70 bytes, each empty object too: a file of its largest size could fill the memory.
    values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if values > MAX_VALUES:
        raise CheckpointError.of(what, "", f"a JSON object of at most {MAX_VALUES} values", values)
    try:
        value = json.loads(
            raw.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except UnicodeDecodeError as error:
        got = f"text that is no UTF-8 (byte {error.start}: {error.reason})"
        raise CheckpointError.of(what, "", "a JSON object", got) from error
    except RecursionError as error:
        raise CheckpointError.of(what, "", "a JSON object", "one nested too deep") from error
    except ValueError as error:
        raise CheckpointError.of(what, "", "a JSON object", f"none: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError.of(what, "", "a JSON object", type(value).__name__)
    return value


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading; never waits for the writer of a pipe.

    Raises CheckpointError for a path that is missing, unreadable or not a regular file.
    """
    try:
        file = open(path, "rb", opener=_open_without_waiting)  # noqa: SIM115 - the caller's to close
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            file.close()
            raise CheckpointError.of(path, "", "a regular file", "something else")
    except FileNotFoundError:
        raise CheckpointError.of(path, "", "a file", "nothing of that name") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CheckpointError.of(path, "", "a readable file", f"the error: {reason}") from error
    return file


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """Returns the file's bytes. Raises CheckpointError if it is missing, unreadable or longer than `max_bytes`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise CheckpointError.of(path, "", f"at most {max_bytes} bytes", size)
        try:
            return file.read(max_bytes)
        except OSError as error:
            raise CheckpointError.of(path, "", "a readable file", f"the error: {error.strerror}") from error


def read_object(path: Path, max_bytes: int = 1 << 20) -> dict[str, Any]:
    """Reads a file of at most `max_bytes` as `parse_object` does."""
    return parse_object(read_bounded(path, max_bytes), str(path))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r:.200} occurs twice")
        result[key] = value
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text:.40} is beyond any float")
    return value


def _open_without_waiting(name: str, flags: int) -> int:
    return os.open(name, flags | os.O_NONBLOCK)
