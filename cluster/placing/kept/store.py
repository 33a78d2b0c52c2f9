"""Store the text of a deployment's desired state between two lives of its server, in a file."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Protocol

from colibri.errors import ConfigError, OverBudget

#: Far more than a state of 1,000 workers and 256 x 60 experts takes.
MOST_BYTES = 64 << 20


class DesiredStore(Protocol):
    """Keeps one text, whatever becomes of the process. Its calls may take a while, but each has a bound of its own. All
    raise ColibriError, naming the place, when the place cannot be used."""

    @property
    def where(self) -> str:
        """The place, as an operator finds it."""
        ...

    def load(self) -> str | None:
        """Returns the text saved last, or None where there is none or it was set aside."""
        ...

    def save(self, text: str) -> None:
        """Replaces what was saved before, as a whole: a crash leaves the one text or the other."""
        ...

    def set_aside(self, why: str) -> str:
        """Moves what was saved out of the way, so that `load` finds nothing. why: one word. Returns where it is now."""
        ...


class FileStore:
    """DesiredStore in one file of this machine, mode 0600, in a folder that is made when it is first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def where(self) -> str:
        return str(self._path)

    def load(self) -> str | None:
        try:
            with self._path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigError(
                "--state", "a file that can be read", f"{self._path}: {error.strerror}"
            ) from error
        if len(data) > MOST_BYTES:
            raise OverBudget(f"--state: expected at most {MOST_BYTES} bytes, got more in {self._path}")
        return data.decode(errors="replace")  # what is no UTF-8 is no state either, and is told as damaged

    def save(self, text: str) -> None:
        folder = self._path.parent
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=f".{self._path.name}.", dir=folder)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(text.encode())
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, self._path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(name)
                raise
            _sync_folder(folder)
        except OSError as error:
            raise ConfigError(
                "--state", "a file that can be written", f"{self._path}: {error.strerror}"
            ) from error

    def set_aside(self, why: str) -> str:
        aside = self._path.with_name(f"{self._path.name}.{why}")
        try:
            os.replace(self._path, aside)
        except FileNotFoundError:
            return str(aside)
        except OSError as error:
            raise ConfigError(
                "--state", "a file that can be renamed", f"{self._path}: {error.strerror}"
            ) from error
        return str(aside)


def _sync_folder(folder: Path) -> None:
    """So that the new name outlives a crash of the machine."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
