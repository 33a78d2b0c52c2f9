"""Bits that a bad disk changes: one byte of a file, its size and times as before."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colibri.models.shards import open_weights


@dataclass(frozen=True, slots=True)
class Place:
    """A byte of a tensor (empty: of the header) in a weight file."""

    path: Path
    tensor: str
    at: int


def places(folder: Path, count: int, seed: int) -> list[Place]:
    """Random bytes of the model's tensors: every byte of every weight file is as likely."""
    tensors = sorted(
        (file.path, info.begin, info.end, name)
        for name, file in open_weights(folder).items()
        for info in (file.tensors[name],)
    )
    draw = random.Random(seed)
    chosen = draw.choices(tensors, [end - begin for _, begin, end, _ in tensors], k=count)
    return [Place(path, name, draw.randrange(begin, end)) for path, begin, end, name in chosen]


def header_places(folder: Path, count: int, seed: int) -> list[Place]:
    """Random bytes before the first tensor."""
    files = sorted({file.path: file.data_start for file in open_weights(folder).values()}.items())
    draw = random.Random(seed)
    return [
        Place(path, "", draw.randrange(start)) for path, start in (draw.choice(files) for _ in range(count))
    ]


@contextlib.contextmanager
def flipped(place: Place, bit: int = 0) -> Iterator[None]:
    """Inside, one bit of that byte is another. Size and times of the file stay."""
    _flip(place.path, place.at, bit)
    try:
        yield
    finally:
        _flip(place.path, place.at, bit)


def _flip(path: Path, at: int, bit: int) -> None:
    before = path.stat()
    descriptor = os.open(path, os.O_RDWR)
    try:
        value = os.pread(descriptor, 1, at)[0] ^ (1 << bit)
        os.pwrite(descriptor, bytes([value]), at)
    finally:
        os.close(descriptor)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
