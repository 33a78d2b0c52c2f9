"""Find a pack's blobs: beside its manifest, or in the cache of fetched blobs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from colibri.errors import CheckpointError, WeightsUnavailable
from colibri.models.packs.blob_cache import BlobCache
from colibri.models.packs.manifest import Blob
from colibri.models.packs.remote_folder import RemoteFolder

#: Blobs fetched side by side, ahead of the one that is wanted.
_AHEAD = 4
#: Pauses before a failed read is tried again, seconds.
_PAUSES_S = (0.5, 2.0)


class PackFiles(Protocol):
    """A pack's files. origin: the location by which another process opens the same pack."""

    origin: str

    @property
    def fetched(self) -> int:
        """Bytes fetched from elsewhere."""

    def locate(self, name: str, entry: Blob) -> tuple[Path, int]:
        """Returns file and offset of a blob."""

    def renew(self, entry: Blob) -> bool:
        """Says that a blob's bytes were wrong. Returns whether `locate` may now bring others."""

    def ahead(self, entries: Sequence[tuple[str, Blob]]) -> contextlib.AbstractContextManager[None]:
        """Inside this context, the entries will be needed, in this order; they may be fetched ahead."""


class OwnFiles:
    """Files in the pack's own folder."""

    fetched = 0

    def __init__(self, folder: Path) -> None:
        self.origin = str(folder.resolve())
        self._folder = folder

    def locate(self, name: str, entry: Blob) -> tuple[Path, int]:
        return self._folder / entry.file, entry.offset

    def renew(self, entry: Blob) -> bool:
        return False

    def ahead(self, entries: Sequence[tuple[str, Blob]]) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class FetchedFiles:
    """Files in `cache`; each is fetched when it is first needed."""

    def __init__(
        self, remote: RemoteFolder, cache: BlobCache, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.origin = remote.url
        self._remote = remote
        self._cache = cache
        self._sleep = sleep

    @property
    def fetched(self) -> int:
        return self._cache.fetched

    def locate(self, name: str, entry: Blob) -> tuple[Path, int]:
        """Returns file and offset of a blob. Raises WeightsUnavailable after three tries, CheckpointError for wrong
        bytes.
        """
        return self._cache.obtain(
            entry.sha256,
            entry.bytes,
            f"{self._remote.name}: {name}",
            lambda begin, end: self._read(entry.file, entry.offset + begin, entry.offset + end),
        ), 0

    def renew(self, entry: Blob) -> bool:
        self._cache.discard(entry.sha256)
        return True

    @contextlib.contextmanager
    def ahead(self, entries: Sequence[tuple[str, Blob]]) -> Iterator[None]:
        pool = ThreadPoolExecutor(_AHEAD, thread_name_prefix="colibri-ahead")
        try:
            for name, entry in entries:
                if not self._cache.path(entry.sha256).exists():
                    pool.submit(self._bring, name, entry)
            yield
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _bring(self, name: str, entry: Blob) -> None:
        # Whoever wants it meets the same error, and says so.
        with contextlib.suppress(WeightsUnavailable, CheckpointError, OSError):
            self.locate(name, entry)

    def _read(self, file: str, begin: int, end: int) -> bytes:
        for pause_s in _PAUSES_S:
            try:
                return self._remote.read(file, begin, end)
            except WeightsUnavailable:
                self._sleep(pause_s)
        return self._remote.read(file, begin, end)
