"""Find out whether a checkpoint is still what it was.

As each piece is loaded, its digest is compared with the one from its first load. The first load is believed, and
the log says so (docs/operations.md).
"""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import xxhash

from colibri.errors import CheckpointError
from colibri.models.digest_file import ABSENT, WHOLE, Digests, Piece, add_digests, places, read_digests
from colibri.models.home import colibri_home
from colibri.models.json_file import read_bounded
from colibri.models.text_names import MAX_TEXT_BYTES

_log = logging.getLogger(__name__)


class DigestBook:
    """The digests of the checkpoint in one folder. Reads its file when that is first needed. Thread-safe.

    home: Colibri's; None: as the environment says.
    """

    def __init__(self, folder: Path, home: Path | None = None) -> None:
        self.folder = folder
        self._home = home
        self._lock = threading.Lock()
        self._known: dict[Piece, str] | None = None
        self._new: dict[Piece, str] = {}
        self._read: dict[Piece, str] = {}

    def check(self, file: str, part: str, digest: str) -> None:
        """Notes the digest of a piece that was read. Raises CheckpointError if it was another at the first load."""
        with self._lock:
            if self._known is None:
                self._known = read_digests(self.folder, self._place())
            self._read[file, part] = digest
            noted = self._known.get((file, part))
            if noted is None:
                noted = self._new.setdefault((file, part), digest)
        if noted != digest:
            raise self.changed((file, part), noted, digest)

    def noted(self, file: str, part: str) -> str:
        """Returns the piece's digest at the first load; empty if it was never loaded."""
        with self._lock:
            if self._known is None:
                self._known = read_digests(self.folder, self._place())
            return self._known.get((file, part), "")

    def read(self) -> Digests:
        """Returns the digest of every piece that this object was told of."""
        with self._lock:
            return dict(self._read)

    def check_texts(self, names: tuple[str, ...]) -> None:
        """Checks small files of the folder, which may be missing, as `check` does."""
        for name in names:
            self.check(name, WHOLE, text_digest(self.folder / name))

    def save(self) -> None:
        """Notes what was read for the first time, and logs it. Raises CheckpointError if another process, which read
        it at the same time, found something else.
        """
        with self._lock:
            new, self._new = self._new, {}
        if not new:
            return
        try:
            path, noted = add_digests(self.folder, self._place(), new)
        except OSError as error:
            where = " and ".join(str(place) for place in places(self.folder, self._place()))
            _log.warning(
                "%s: digests of %d pieces are not noted, so a later change of them will not be seen: %s: %s",
                *(self.folder, len(new), where, error.strerror),
            )
            noted = dict(new)
        else:
            _log.warning(
                "%s: first load of %d pieces (tensors, files): believed, and their digests noted in %s",
                *(self.folder, len(new), path),
            )
        with self._lock:
            self._known = {**(self._known or {}), **noted}
        for piece, digest in new.items():
            if noted[piece] != digest:
                raise self.changed(piece, noted[piece], digest)

    def changed(self, piece: Piece, noted: str, digest: str) -> CheckpointError:
        return changed(self.folder, piece, noted, digest)

    def _place(self) -> Path:
        return colibri_home(os.environ) if self._home is None else self._home


def text_digest(path: Path) -> str:
    """Returns the digest of a small file; ABSENT if there is none. Raises CheckpointError if it cannot be read."""
    if not path.exists():
        return ABSENT
    return xxhash.xxh3_128(read_bounded(path, MAX_TEXT_BYTES)).hexdigest()


def changed(folder: Path, piece: Piece, noted: str, digest: str) -> CheckpointError:
    """Returns the error for a piece that has changed."""
    file, part = piece
    where = f"{folder / file}" if part == WHOLE else f"{folder / file}: {part}"
    remedy = f"damaged or replaced: fetch it anew, or, if it is meant, `colibri verify {folder} --accept`"
    return CheckpointError.of(where, "content", f"{noted}, as first loaded", f"{digest}: {remedy}")


def differences(noted: Digests, found: Digests) -> list[Piece]:
    """Returns the pieces in both that differ, in order."""
    return sorted(piece for piece in found if piece in noted and noted[piece] != found[piece])
