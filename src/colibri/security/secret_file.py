"""Read and write files that hold secrets: only where no stranger can, and again when they change."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

from colibri.errors import ConfigError

#: Of a certificate, a key or a token file.
MAX_BYTES = 1 << 20

#: Tells one content of a file from the next: device, inode, size, time of change in nanoseconds. A file that is
#: replaced by renaming has another inode, one behind a symbolic link that is switched, too.
Stamp = tuple[int, int, int, int]


def read_file(path: Path, field: str, *, secret: bool) -> bytes:
    """Reads a file. Raises ConfigError naming `field`.

    secret: nobody else may be able to read or change it.
    """
    try:
        # Not blocking: a pipe without a writer must not hold up a start.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigError(field, "a file that can be read", f"{path} ({error.strerror})") from None
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise ConfigError(field, "a regular file", path)
        if secret:
            _check_private(path, facts, field)
        if facts.st_size > MAX_BYTES:
            raise ConfigError(field, f"at most {MAX_BYTES} bytes", f"{facts.st_size} in {path}")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_BYTES)
    except OSError as error:
        raise ConfigError(field, "a file that can be read", f"{path} ({error.strerror})") from None
    finally:
        os.close(descriptor)


def stamp(path: Path) -> Stamp | None:
    """Returns what tells one content of a file from the next; None if the file cannot be examined."""
    try:
        facts = os.stat(path)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns


def write_file(path: Path, data: bytes, *, secret: bool) -> None:
    """Writes the file whole or not at all; others can never read it meanwhile. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            if not secret:
                os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_new_file(path: Path, data: bytes) -> None:
    """Writes a secret as write_file does, if there is no file yet. Raises FileExistsError, OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    write_file(temporary, data, secret=True)
    try:
        os.link(temporary, path)  # unlike a renaming it replaces nothing
    finally:
        os.unlink(temporary)


def _check_private(path: Path, facts: os.stat_result, field: str) -> None:
    """Applies OpenSSH's and PostgreSQL's rule for key files. Kubernetes mounts secrets as root's, readable by the
    group.
    """
    if facts.st_uid not in (os.geteuid(), 0):
        raise ConfigError(field, f"a file of user {os.geteuid()} or root", f"{path}, of user {facts.st_uid}")
    allowed = 0o740 if facts.st_uid == 0 else 0o700
    mode = stat.S_IMODE(facts.st_mode)
    if mode & ~allowed & 0o777:
        raise ConfigError(
            field, "a file that others cannot read or write (chmod 600)", f"{path}, mode {mode:04o}"
        )
