"""The texts for calibration and for measuring quality: in the public domain, with no text in both.

`data/importance.txt`: Alice's Adventures in Wonderland (Carroll, 1865), chapter I in part; the Constitution of the
United States (1787), in part; the beginnings of Moby-Dick (Melville, 1851) and A Tale of Two Cities (Dickens,
1859); then the passages of `data/calibration.txt`, which are the project's own. `data/quality.txt`: the Declaration
of Independence (1776), the Gettysburg Address (Lincoln, 1863), Pride and Prejudice (Austen, 1813), chapter I.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from colibri.errors import CheckpointError
from colibri.models.tokenizer import Tokenizer

_DATA = Path(__file__).parent / "data"
IMPORTANCE_TEXTS = (_DATA / "importance.txt", _DATA / "calibration.txt")
QUALITY_TEXTS = (_DATA / "quality.txt",)

#: Tokens of one passage at most: long enough for attention to matter, short enough for every small context.
LENGTH = 512
#: Of a calibration: four thousand rows tell what there is to tell, and a vocabulary of bytes would make many more.
MOST = 5120
_SEPARATOR = "\n%%\n"
_FEWEST = 8


def read_passages(texts: tuple[Path, ...]) -> tuple[list[str], str]:
    """Returns the passages of all texts, one after another, and the SHA-256 of their bytes. Raises CheckpointError."""
    digest, passages = hashlib.sha256(), list[str]()
    for path in texts:
        try:
            raw = path.read_bytes()
            text = raw.decode()
        except (OSError, UnicodeDecodeError) as error:
            raise CheckpointError.of(path, "", "a text in UTF-8", f"the error: {error}") from error
        digest.update(raw)
        passages += [passage.strip("\n") for passage in text.split(_SEPARATOR)]
    return [passage for passage in passages if passage], digest.hexdigest()


def tokenize(
    passages: list[str], tokenizer: Tokenizer, length: int = LENGTH, most: int | None = None
) -> list[list[int]]:
    """Encodes each passage as a text of its own and cuts the ids into pieces of at most `length`. Leaves out scraps.

    most: take an even share of the pieces, of about this many tokens in all.
    """
    pieces = []
    for passage in passages:
        ids = tokenizer.encode(passage)
        pieces += [ids[at : at + length] for at in range(0, len(ids), length)]
    pieces = [piece for piece in pieces if len(piece) >= _FEWEST]
    total = sum(map(len, pieces))
    if most is None or total <= most:
        return pieces
    step = total / most
    return [pieces[int(at * step)] for at in range(int(len(pieces) / step)) if int(at * step) < len(pieces)]
