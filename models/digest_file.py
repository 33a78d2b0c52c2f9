"""The file that keeps a checkpoint's digests: its format, where it lies, and how several processes write to it.

It is `colibri-digests.json` beside the model, or, if that folder cannot be written, a file in Colibri's home, named
by the folder's path. Only `replace_digests` overwrites a digest with another value.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from colibri.errors import CheckpointError
from colibri.models.json_file import parse_object, read_bounded

FILE_NAME = "colibri-digests.json"
FORMAT, VERSION = "colibri-digests", 1
#: Parts of a file that are no tensors: all of it, and what stands before its first tensor.
WHOLE, HEADER = "*", "#header"
#: The digest of a file that is not there.
ABSENT = "absent"
_MAX_BYTES = 256 << 20
_DIGITS = 32
#: How long another process may keep the lock, seconds: it is held while one small file is read and written.
_LOCK_S = 10.0
_LOOK_S = 0.02

Piece = tuple[str, str]
"""(file, part of it): a tensor's name (tensor_names.Part.label), WHOLE or HEADER."""
Digests = Mapping[Piece, str]
"""XXH3-128, as 32 hexadecimal digits, or ABSENT."""


def places(folder: Path, home: Path) -> tuple[Path, Path]:
    """Where the digests of the model in `folder` may lie: beside it, which goes first, and in Colibri's home."""
    path = folder.resolve()
    return path / FILE_NAME, home / "digests" / f"{xxhash.xxh3_128(str(path).encode()).hexdigest()}.json"


def read_digests(folder: Path, home: Path) -> dict[Piece, str]:
    """Returns the digests noted for the model in `folder`; empty before its first load. Raises CheckpointError for a
    damaged file.
    """
    beside, kept = places(folder, home)
    return {**_read(kept), **_read(beside)}


def add_digests(folder: Path, home: Path, new: Digests) -> tuple[Path, dict[Piece, str]]:
    """Notes digests that are not noted yet. Returns the file, and all digests noted now.

    If another process noted other values meanwhile, its values count. Raises OSError if the file can be written in
    neither place, and CheckpointError as read_digests.
    """
    beside, kept = places(folder, home)
    with _locked(folder):
        known = read_digests(folder, home)
        merged = {**new, **known}
        try:
            _write(beside, merged)
            return beside, merged
        except OSError:
            _write(kept, merged, folder)
            return kept, merged


def replace_digests(folder: Path, home: Path, digests: Digests) -> Path:
    """Replaces all noted digests. Raises OSError if the file can be written in neither place, or the old one cannot be
    removed.
    """
    beside, kept = places(folder, home)
    with _locked(folder):
        kept.unlink(missing_ok=True)
        try:
            _write(beside, digests)
            return beside
        except OSError:
            if beside.exists():
                raise
            _write(kept, digests, folder)
            return kept


def encode(digests: Digests, folder: Path | None = None) -> bytes:
    """Returns the file's bytes. folder: is named in it if the file lies elsewhere."""
    files: dict[str, dict[str, str]] = {}
    for (file, part), digest in digests.items():
        files.setdefault(file, {})[part] = digest
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION, "files": files}
    if folder is not None:
        document["folder"] = str(folder.resolve())
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def decode(raw: bytes, where: str) -> dict[Piece, str]:
    """Reads the file's bytes. Raises CheckpointError naming `where`, what was expected and what it got."""
    document = parse_object(raw, where)
    if document.get("format") != FORMAT or document.get("version") != VERSION:
        got = f"{document.get('format')!r}, version {document.get('version')!r}"
        raise CheckpointError.of(where, "format", f"{FORMAT!r}, version {VERSION}", got)
    files = document.get("files")
    if not isinstance(files, dict):
        raise CheckpointError.of(where, "files", "an object", repr(files))
    found: dict[Piece, str] = {}
    for file, parts in files.items():
        if not isinstance(parts, dict):
            raise CheckpointError.of(f"{where}: files", file, "an object", repr(parts))
        for part, digest in parts.items():
            if not isinstance(digest, str) or not _is_digest(digest):
                expected = f"{_DIGITS} hexadecimal digits"
                raise CheckpointError.of(f"{where}: files: {file}", part, expected, repr(digest))
            found[file, part] = digest
    return found


def _is_digest(text: str) -> bool:
    return text == ABSENT or (len(text) == _DIGITS and not set(text) - set("0123456789abcdef"))


def _read(path: Path) -> dict[Piece, str]:
    if not path.exists():
        return {}
    return decode(read_bounded(path, _MAX_BYTES), str(path))


def _write(path: Path, digests: Digests, folder: Path | None = None) -> None:
    """Writes the file at once: readers, and writers that are killed, always see or leave a complete file."""
    if folder is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(descriptor, "wb") as file:
            file.write(encode(digests, folder))
            # As any file of the model: other users' workers read it too.
            os.fchmod(descriptor, 0o644)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


@contextlib.contextmanager
def _locked(folder: Path, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Locks the folder itself against other processes of this host.

    Without the lock, after _LOCK_S or on file systems that have none, another process's note may be lost; it is
    made again at that process's next load.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield
        return
    try:
        until = clock() + _LOCK_S
        while clock() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(_LOOK_S)
            except OSError:
                break
        yield
    finally:
        os.close(descriptor)
