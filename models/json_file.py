"""Read the small JSON files of a checkpoint folder: bounded in size, duplicate keys refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from colibri.errors import CheckpointError


def parse_object(raw: bytes, what: str) -> dict[str, Any]:
    """A UTF-8 JSON object; `what` names the source in the CheckpointError for anything else or for a double
    key.
    """
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{what}: not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{what}: expected a JSON object, got {type(value).__name__}")
    return value


def read_bounded(path: Path, max_bytes: int) -> bytes:
    """The file's bytes. Raises CheckpointError if it is missing, unreadable or longer than `max_bytes`."""
    try:
        with open(path, "rb") as file:
            raw = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise CheckpointError(f"{path}: file is missing") from None
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    if len(raw) > max_bytes:
        raise CheckpointError(f"{path}: expected at most {max_bytes} bytes, got more")
    return raw


def read_object(path: Path, max_bytes: int = 1 << 20) -> dict[str, Any]:
    """`parse_object` of a file of at most `max_bytes`."""
    return parse_object(read_bounded(path, max_bytes), str(path))


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"key {key!r} occurs twice")
        result[key] = value
    return result
