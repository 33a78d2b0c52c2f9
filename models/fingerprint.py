"""A quick, stable id of a model, which coordinator and workers compare before they trust each other's numbers.

It covers every field of the configuration, the name of every matrix (the same for all layouts), and bytes of each
matrix: all of them up to 4 KiB, else four windows of 1 KiB, evenly spread from its first to its last byte. So file
names, shard sizes, expert layout, dates and paths do not matter, and training or quantising a model changes the id.
It does not notice a change of weights outside the windows: the id tells models apart, it is no checksum of the
files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from colibri.errors import CheckpointError
from colibri.models.config import MixtralConfig

_WINDOWS = 4
_WINDOW_BYTES = 1024


@dataclass(frozen=True, slots=True)
class PlacedPart:
    """A matrix as bytes `[begin, end)` of a file. label: its name, the same for all layouts."""

    label: str
    path: Path
    begin: int
    end: int


def fingerprint(config: MixtralConfig, parts: Iterable[PlacedPart]) -> str:
    """Returns XXH3-128 over configuration and samples, 32 hexadecimal digits. parts: in a fixed order."""
    digest = xxhash.xxh3_128(json.dumps(asdict(config), sort_keys=True).encode())
    with ExitStack() as stack:
        opened: dict[Path, int] = {}
        for part in parts:
            if part.path not in opened:
                opened[part.path] = _open(part.path)
                stack.callback(os.close, opened[part.path])
            digest.update(f"\n{part.label} {part.end - part.begin}\n".encode())
            for at, length in windows(part.begin, part.end):
                sample = os.pread(opened[part.path], length, at)
                if len(sample) != length:
                    raise CheckpointError(
                        f"{part.path}: {part.label}: the file ends at byte {at + len(sample)}"
                    )
                digest.update(sample)
    return digest.hexdigest()


def windows(begin: int, end: int) -> list[tuple[int, int]]:
    """Returns (offset, length) of the sampled windows of bytes `[begin, end)`."""
    size = end - begin
    if size <= _WINDOWS * _WINDOW_BYTES:
        return [(begin, size)]
    last = size - _WINDOW_BYTES
    return [(begin + last * i // (_WINDOWS - 1), _WINDOW_BYTES) for i in range(_WINDOWS)]


def _open(path: Path) -> int:
    try:
        handle = os.open(path, os.O_RDONLY)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    # Each window alone is wanted: read-ahead would pull in a hundred times as much from a cold disk.
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
    return handle
