"""Read a folder elsewhere through fsspec, with any scheme that is installed (file, http, s3, gs, ...)."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from colibri.errors import ColibriError, ConfigError, WeightsUnavailable

#: Longest wait for one read, seconds.
READ_S = 60.0
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_USER = re.compile(r"(?<=://)[^/@]*@")

T = TypeVar("T")


def is_url(place: object) -> bool:
    """Whether it names a remote folder, not one of this machine."""
    return isinstance(place, str) and _URL.match(place) is not None


def without_user(url: str) -> str:
    """Returns the URL without user name and password, to show to people."""
    return _USER.sub("", url)


class RemoteFolder:
    """A remote folder. Every read is bounded.

    url: as fsspec takes it.
    name: the URL without the user's name and password, for people.

    Raises ConfigError for a scheme that is unknown or not installed, WeightsUnavailable (which a retry may cure)
    for everything else.
    """

    def __init__(self, url: str, read_s: float = READ_S) -> None:
        import fsspec

        self.url = url.rstrip("/")
        self.name = without_user(self.url)
        self._read_s = read_s
        if "::" in self.url:
            # Of fsspec: one place read through another, whatever that names.
            raise ConfigError("MODEL", "one URL", f"{self.name}, several joined by '::'")
        try:
            if self.url.lower().startswith(("http://", "https://")):
                from colibri.models.packs.http_folder import HttpFolder

                self._files, self._root = HttpFolder(), self.url
            else:
                self._files, self._root = fsspec.core.url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise ConfigError(
                "MODEL", "a folder, or a URL whose scheme fsspec has", f"{self.name}: {error}"
            ) from None

    def size(self, file: str) -> int:
        """Returns the bytes of a file."""
        found = self._bounded(file, lambda path: self._files.size(path))
        if not isinstance(found, int):
            raise WeightsUnavailable(f"{self.name}/{file}: its size is not told", peer=self.name)
        return found

    def read(self, file: str, begin: int, end: int) -> bytes:
        """Returns all bytes [begin, end)."""
        data = bytes(self._bounded(file, lambda path: self._files.cat_file(path, start=begin, end=end)))
        if len(data) != end - begin:
            raise WeightsUnavailable(
                f"{self.name}/{file}: bytes {begin} to {end}: expected {end - begin}, got {len(data)}",
                peer=self.name,
            )
        return data

    def _bounded(self, file: str, call: Callable[[str], Any]) -> Any:
        """Calls on a thread of its own, since no scheme promises to return."""
        result: list[Any] = []
        failure: list[BaseException] = []

        def run() -> None:
            try:
                result.append(call(f"{self._root}/{file}"))
            except BaseException as error:  # raised where the result is wanted
                failure.append(error)

        thread = threading.Thread(target=run, name="colibri-fetch", daemon=True)
        thread.start()
        thread.join(self._read_s)
        if failure and isinstance(failure[0], ColibriError):
            raise failure[0]
        if failure:
            reason = without_user(f"{type(failure[0]).__name__}: {failure[0]}")
            raise WeightsUnavailable(f"{self.name}/{file}: {reason}", peer=self.name) from None
        if not result:
            text = f"{self.name}/{file}: no answer within {self._read_s:g} s"
            raise WeightsUnavailable(text, peer=self.name)
        return result[0]
