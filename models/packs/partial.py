"""An unfinished pack: a folder beside its final place, with a journal of the blobs that are complete on disk.

If it is killed at any moment, the next process resumes it. It is renamed when the last blob is there.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from colibri.errors import CheckpointError
from colibri.models.json_file import parse_object
from colibri.models.packs.manifest import MANIFEST_NAME, Blob
from colibri.models.packs.plan import PlannedBlob, PlannedFile
from colibri.models.packs.weights import SquaredError

#: What was made when, how fast and how exactly: no part of the pack's hash.
REPORT_NAME = "report.json"
#: What int4 is quantised by; kept, since running a text through a large model takes long.
IMPORTANCES_NAME = "importances.npz"
_LOCK, _RECIPE, _JOURNAL = "lock", "recipe.json", "journal.jsonl"
#: Of the unfinished pack alone: gone before it takes its place.
_OWN = (_LOCK, _RECIPE, _JOURNAL, IMPORTANCES_NAME)


@dataclass(frozen=True, slots=True)
class WrittenBlob:
    entry: Blob
    error: SquaredError


class PartialPack:
    """An unfinished pack. Several threads may call `write`.

    recipe: everything that decides a byte of the pack. An unfinished pack of another recipe is thrown away.

    Raises CheckpointError if another process works on it, or `out` is taken.
    """

    def __init__(self, out: Path, recipe: Mapping[str, Any], files: tuple[PlannedFile, ...]) -> None:
        self.out = out
        self.folder = out.with_name(out.name + ".unfinished")
        self._plan = files
        self._appending = threading.Lock()
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _locked(self.folder / _LOCK)
        try:
            if out.exists():
                raise CheckpointError.of(out, "", "a name that is free", "something of that name")
            text = json.dumps(recipe, sort_keys=True)
            known = self.folder / _RECIPE
            #: Whether an earlier process's work is gone on with.
            self.resumed = known.exists() and known.read_text() == text
            if not self.resumed:
                _empty(self.folder)
                known.write_text(text)
            self.done = self._read_journal()
            self._journal = open(self.folder / _JOURNAL, "ab")  # noqa: SIM115 - closed by `close`
            self._files = {file.name: self._open(file) for file in files}
        except OSError as error:
            os.close(self._lock)
            raise _disk(self.folder, error) from error
        except BaseException:
            os.close(self._lock)
            raise

    def write(self, blob: PlannedBlob, data: NDArray[np.uint8], error: SquaredError) -> None:
        """Writes a blob. When this returns, the blob is on disk, and no later process makes it again.

        data: the blob's `used` bytes.
        """
        zeros = bytes(blob.nbytes - blob.used)
        sha256, xxh3 = hashlib.sha256(data.data), xxhash.xxh3_128(data.data)
        sha256.update(zeros)
        xxh3.update(zeros)
        entry = Blob(blob.file, blob.offset, blob.nbytes, sha256.hexdigest(), xxh3.hexdigest())
        line = {
            "name": blob.name,
            "sha256": entry.sha256,
            "xxh3": entry.xxh3,
            "lost": error.lost,
            "total": error.total,
        }
        try:
            # The zeros behind the data are there already: the file was made of them.
            _write_all(self._files[blob.file], data.data, blob.offset)
            os.fdatasync(self._files[blob.file])
            with self._appending:
                self._journal.write(json.dumps(line).encode() + b"\n")
                self._journal.flush()
                os.fdatasync(self._journal.fileno())
                self.done[blob.name] = WrittenBlob(entry, error)
        except OSError as failure:
            raise _disk(self.folder, failure) from failure

    def finish(self, manifest: bytes, report: Mapping[str, Any], texts: Mapping[str, bytes]) -> None:
        """Renames the folder, which is now complete, to `out`."""
        try:
            self._close_files()
            for name, raw in texts.items():
                _write_file(self.folder / name, raw)
            _write_file(self.folder / REPORT_NAME, json.dumps(report, indent=1).encode() + b"\n")
            _write_file(self.folder / MANIFEST_NAME, manifest)
            _sync_folder(self.folder)
            os.rename(self.folder, self.out)
            for name in _OWN:
                (self.out / name).unlink(missing_ok=True)
            _sync_folder(self.out.parent)
        except OSError as error:
            raise _disk(self.folder, error) from error

    def close(self) -> None:
        """Leaves what is unfinished for the next process."""
        self._close_files()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _close_files(self) -> None:
        self._journal.close()
        while self._files:
            os.close(self._files.popitem()[1])

    def _open(self, file: PlannedFile) -> int:
        descriptor = os.open(self.folder / file.name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            # Takes the room now, so that a full disk is told before hours of work.
            os.posix_fallocate(descriptor, 0, file.nbytes)
            _write_all(descriptor, memoryview(file.head), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _read_journal(self) -> dict[str, WrittenBlob]:
        path, done = self.folder / _JOURNAL, dict[str, WrittenBlob]()
        if not path.exists():
            return done
        # Of a file that is gone or cut, nothing is whole.
        sound = [file for file in self._plan if _size(self.folder / file.name) == file.nbytes]
        planned = {blob.name: blob for file in sound for blob in file.blobs}
        *lines, _cut_off = path.read_bytes().split(b"\n")
        for line in lines:
            try:
                found = parse_object(line, str(path))
                blob = planned.get(found["name"])
                if blob is not None:
                    entry = Blob(blob.file, blob.offset, blob.nbytes, found["sha256"], found["xxh3"])
                    done[blob.name] = WrittenBlob(entry, SquaredError(found["lost"], found["total"]))
            except (CheckpointError, KeyError, TypeError):
                continue  # what a crashed machine left there; its blob is made again
        os.truncate(path, sum(len(line) + 1 for line in lines))
        return done


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        expected = "no other process that makes this pack"
        raise CheckpointError.of(path.parent, "", expected, "one that does") from None
    return descriptor


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != _LOCK:
            path.unlink()


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else -1


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _write_file(path: Path, raw: bytes) -> None:
    with open(path, "wb") as file:
        file.write(raw)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _disk(where: Path, error: OSError) -> CheckpointError:
    return CheckpointError.of(where, "", "a disk that takes the pack", f"the error: {error.strerror}")
