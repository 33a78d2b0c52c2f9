"""Keep fetched weights under the SHA-256 of their bytes, so that all processes of a host share what one has fetched.

A file under its digest is complete and was compared with it. Before that it is a `.part`, which its writer locks
and the next one resumes.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from colibri.errors import CheckpointError, OverBudget, WeightsUnavailable

#: Bytes of one read.
CHUNK = 8 << 20
#: How long another process's fetch may bring nothing, seconds.
STALLED_S = 120.0
_LOOK_S = 0.05


class BlobCache:
    """Blobs in a folder. Safe between threads and between processes.

    root: the folder, made when needed.
    fetched: bytes that this object has fetched.
    """

    def __init__(
        self,
        root: Path,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.fetched = 0
        self._root = root
        self._clock = clock
        self._sleep = sleep

    def path(self, sha256: str) -> Path:
        """Returns where the blob is once it is complete."""
        return self._root / sha256[:2] / sha256

    def obtain(self, sha256: str, nbytes: int, name: str, read: Callable[[int, int], bytes]) -> Path:
        """Returns the blob's file. Fetches missing bytes in pieces.

        name: of the blob, in errors.

        Raises what `read` raises (the bytes so far stay for the next try), OverBudget if the disk is full,
        CheckpointError if the bytes do not have the digest, WeightsUnavailable if another process fetches it but
        gets no further.
        """
        whole = self.path(sha256)
        _no_link(self._root, whole.parent)
        if _is_whole(whole, nbytes):
            return whole
        whole.parent.mkdir(parents=True, exist_ok=True)
        part = whole.with_suffix(".part")
        with self._own(part, whole, name) as file:
            if _is_whole(whole, nbytes):
                part.unlink(missing_ok=True)  # made a moment after another's became the whole
            else:
                self._complete(file, part, sha256, nbytes, name, read)
                os.replace(part, whole)
        return whole

    def discard(self, sha256: str) -> None:
        """Removes a blob whose file has gone bad."""
        self.path(sha256).unlink(missing_ok=True)

    def _own(self, part: Path, whole: Path, name: str) -> BinaryIO:
        """Opens and locks the part. Waits for another process that writes it, as long as that one makes progress."""
        size, since = -1, self._clock()
        while True:
            file = _open_part(part)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                now, length = self._clock(), os.fstat(file.fileno()).st_size
                file.close()
                if length != size:
                    size, since = length, now
                elif now - since > STALLED_S:
                    text = f"{name}: another process of this host fetches it, but nothing came for {STALLED_S:g} s"
                    raise WeightsUnavailable(text) from None
                self._sleep(_LOOK_S)
                continue
            if _is(file, part) or whole.exists():
                return file
            file.close()  # it was renamed or removed before the lock came

    def _complete(
        self,
        file: BinaryIO,
        part: Path,
        sha256: str,
        nbytes: int,
        name: str,
        read: Callable[[int, int], bytes],
    ) -> None:
        digest, at = self._resume(file, nbytes)
        _check_room(part, nbytes - at, name)
        while at < nbytes:
            piece = read(at, min(at + CHUNK, nbytes))
            file.write(piece)
            digest.update(piece)
            at += len(piece)
            self.fetched += len(piece)
        file.flush()
        if digest.hexdigest() != sha256:
            file.truncate(0)
            raise CheckpointError.of(name, "sha256", sha256, digest.hexdigest())
        os.fsync(file.fileno())

    def _resume(self, file: BinaryIO, nbytes: int) -> tuple[hashlib._Hash, int]:
        """Returns the digest of the bytes so far, and their number."""
        file.seek(0, os.SEEK_END)
        if file.tell() > nbytes:
            file.truncate(0)
        file.seek(0)
        digest, at = hashlib.sha256(), 0
        while piece := file.read(CHUNK):
            digest.update(piece)
            at += len(piece)
        return digest, at


def _no_link(*folders: Path) -> None:
    """Raises CheckpointError if one of the folders is a link: what is written would go elsewhere."""
    for folder in folders:
        if folder.is_symlink():
            raise CheckpointError.of(folder, "", "a folder of the cache", "a symbolic link")


def _is_whole(path: Path, nbytes: int) -> bool:
    """Whether the blob is complete, as a file of its own and not as a link to another's."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == nbytes


def _open_part(path: Path) -> BinaryIO:
    """Opens the part for appending, and creates it if needed. Raises CheckpointError for a link, a pipe and the like
    in its place.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o644)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CheckpointError.of(path, "", "a file of the cache", "a symbolic link") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CheckpointError.of(path, "", "a file of the cache", "something else")
    return open(descriptor, "a+b")


def _is(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _check_room(part: Path, need: int, name: str) -> None:
    disk = os.statvfs(part.parent)
    free = disk.f_bavail * disk.f_frsize
    if need > free:
        raise OverBudget(f"{name}: disk of {part.parent}: expected {need} bytes free, got {free}")
