"""Read all of a model and compare it with what it was when it was first loaded, without serving it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from colibri.kernels.api import Backend
from colibri.models.checked import ANSWER_TEXTS, CheckedCheckpoint
from colibri.models.checkpoint import Checkpoint
from colibri.models.digest_book import DigestBook, differences
from colibri.models.digest_file import WHOLE, Digests, Piece, read_digests
from colibri.models.packs.pack import Pack

Progress = Callable[[int, int], None]
"""(parts done, parts in all)"""


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of a verification.

    found: digest of every piece now.
    noted: digest at its first load.
    changed: the pieces that differ.
    """

    found: Digests
    noted: Digests
    changed: tuple[Piece, ...]

    @property
    def new(self) -> Digests:
        """Pieces that were never loaded before."""
        return {piece: digest for piece, digest in self.found.items() if piece not in self.noted}


class _Recorder(DigestBook):
    """Accepts everything as it is, and remembers it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.found: dict[Piece, str] = {}

    def check(self, file: str, part: str, digest: str) -> None:
        self.found[file, part] = digest


def verify_checkpoint(
    checkpoint: Checkpoint, home: Path, progress: Progress = lambda done, total: None
) -> Verified:
    """Reads all tensors and small files. Raises CheckpointError for weights that are not finite, files that cannot be
    read, and damaged notes.
    """
    noted = read_digests(checkpoint.folder, home)
    found = read_all(checkpoint, progress)
    return Verified(found, noted, tuple(differences(noted, found)))


def read_all(checkpoint: Checkpoint, progress: Progress = lambda done, total: None) -> dict[Piece, str]:
    """Returns the digest of every piece, whatever was noted before. Raises as verify_checkpoint, but not for notes."""
    book, config = _Recorder(checkpoint.folder), checkpoint.config
    folder, generation, layout, files = (
        checkpoint.folder,
        checkpoint.generation,
        checkpoint.layout,
        checkpoint.files,
    )
    reader = CheckedCheckpoint(Checkpoint(folder, config, generation, layout, files, book))
    book.check_texts(ANSWER_TEXTS)
    total = config.layers * config.experts
    reader.embedding()
    reader.final_norm()
    if not config.tied:
        reader.lm_head()
    for layer in range(config.layers):
        reader.norms(layer)
        reader.attention(layer)
        reader.gate(layer)
        for expert in range(config.experts):
            reader.expert(layer, expert)
            progress(layer * config.experts + expert + 1, total)
    return book.found


def verify_pack(pack: Pack, backend: Backend, progress: Progress = lambda done, total: None) -> None:
    """Compares every blob with its checksum in pack.json; fetches those that lie elsewhere.

    Raises CheckpointError for the first wrong one, and WeightsUnavailable.
    """
    pack.check_texts()
    blobs = len(pack.manifest.blobs)
    for done, name in enumerate(pack.manifest.blobs, 1):
        pack.check_blob(name, backend)
        progress(done, blobs)


def piece_name(piece: Piece) -> str:
    """Returns the piece's name, for people."""
    file, part = piece
    return file if part == WHOLE else f"{file}: {part}"
