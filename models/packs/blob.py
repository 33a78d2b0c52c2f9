"""Read one blob of a pack into memory, comparing its checksum on the way."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from colibri.errors import CheckpointError
from colibri.models.json_file import open_regular

#: Hashed while still in the core's cache, so that the checksum costs no second pass over memory.
_CHUNK = 1 << 20


def read_blob(
    path: Path, name: str, offset: int, xxh3: str, into: NDArray[np.uint8], come: Callable[[int], None] | None
) -> None:
    """Fills `into`, which is the size of the blob, from `offset` of the file.

    come: called with n when the first n bytes have arrived, as stored; they are not known to be right yet.

    Raises CheckpointError for a file that ends too early, a disk error, or another checksum than `xxh3`; the
    content of `into` is then void.
    """
    where = f"{path}: {name}"
    digest = xxhash.xxh3_128()
    with open_regular(path) as file:
        descriptor = file.fileno()
        os.posix_fadvise(descriptor, offset, into.nbytes, os.POSIX_FADV_WILLNEED)
        for begin in range(0, into.nbytes, _CHUNK):
            chunk = into.data[begin : begin + _CHUNK]
            try:
                got = os.preadv(descriptor, [chunk], offset + begin)
            except OSError as error:
                raise CheckpointError.of(
                    where, "", "a readable file", f"the error: {error.strerror}"
                ) from error
            if got != chunk.nbytes:
                raise CheckpointError.of(
                    where, "bytes", str(into.nbytes), f"{begin + got}, then the file's end"
                )
            digest.update(chunk)
            if come is not None:
                come(begin + got)
    if digest.hexdigest() != xxh3:
        got_hex = f"{digest.hexdigest()}: the file is damaged or not whole; make or fetch it anew"
        raise CheckpointError.of(where, "xxh3", xxh3, got_hex)
