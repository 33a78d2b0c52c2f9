"""The bytes that each token stands for, if a text is just its tokens' bytes, joined and read as UTF-8.

That holds for byte-level decoders (GPT-2, Llama 3) and for byte fallback (Llama 2, Mixtral). Bytes that are not
UTF-8 read U+FFFD, as in Python's bytes.decode("utf-8", "replace"). The library's byte fallback differs: one stray
byte spoils every character beside it, so text that was right, and sent, changes when that byte comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

_BYTE = re.compile(r"<0x([0-9a-fA-F]{2})>")


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a decoder.

    replaced: (text, its replacement) in tokens, in order.
    fallback: tokens like <0xE2> are bytes; otherwise each character of a token is one byte.
    strip: this character is taken from the text's beginning, `most` times.
    """

    fallback: bool
    replaced: tuple[tuple[str, str], ...] = ()
    strip: str = ""
    most: int = 0


class Vocabulary(Protocol):
    """What is read here of the library's Tokenizer."""

    @property
    def decoder(self) -> Any: ...

    def id_to_token(self, id: int) -> str | None: ...


class TokenBytes:
    """The bytes of each token. Threads may share it."""

    def __init__(self, inner: Vocabulary, form: _Form) -> None:
        self._inner = inner
        self._form = form
        self._letters = {} if form.fallback else _letters()
        self._known: dict[int, bytes] = {}

    @classmethod
    def of(cls, inner: Vocabulary) -> TokenBytes | None:
        """Returns the tokens' bytes, or None for a decoder of another form."""
        form = None if inner.decoder is None else _form(json.loads(inner.decoder.__getstate__()))
        return None if form is None else cls(inner, form)

    @property
    def library_differs(self) -> bool:
        """Whether the library reads bytes that are not UTF-8 differently."""
        return self._form.fallback

    def of_token(self, token: int) -> bytes:
        found = self._known.get(token)
        if found is None:
            found = self._known[token] = self._read(self._inner.id_to_token(token))
        return found

    def text(self, ids: Iterable[int]) -> str:
        """Returns the whole text."""
        return self.begin(b"".join(map(self.of_token, ids)).decode("utf-8", "replace"), self._form.most)[0]

    def begin(self, text: str, left: int) -> tuple[str, int]:
        """Returns what is left of the text's beginning, and how many more characters may be taken off what follows."""
        while left and text.startswith(self._form.strip):
            text, left = text[len(self._form.strip) :], left - 1
        return text, 0 if text else left

    @property
    def stripped(self) -> int:
        """How many characters may be taken off a text's beginning."""
        return self._form.most

    def _read(self, token: str | None) -> bytes:
        if token is None:  # of a padded vocabulary
            return b""
        if not self._form.fallback:
            letters = [self._letters.get(letter) for letter in token]
            return token.encode() if None in letters else bytes(byte for byte in letters if byte is not None)
        for old, new in self._form.replaced:
            token = token.replace(old, new)
        byte = _BYTE.fullmatch(token)
        return token.encode() if byte is None else bytes([int(byte[1], 16)])


def _form(decoder: Mapping[str, Any]) -> _Form | None:
    steps: Sequence[Mapping[str, Any]] = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _Form(fallback=False)
    if "ByteFallback" not in kinds:
        return None
    at = kinds.index("ByteFallback")
    replaced = []
    for step in steps[:at]:
        if step["type"] != "Replace" or "String" not in step["pattern"]:
            return None
        replaced.append((step["pattern"]["String"], step["content"]))
    match [step for step in steps[at + 1 :] if step["type"] != "Fuse"]:
        case []:
            return _Form(True, tuple(replaced))
        case [{"type": "Strip", "content": str(strip), "start": int(most), "stop": 0}] if (
            kinds[at + 1] == "Fuse"
        ):
            return _Form(True, tuple(replaced), strip, most)
    return None


def _letters() -> dict[str, int]:
    """Returns letter of the byte-level alphabet -> byte."""
    kept = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {chr(byte): byte for byte in kept} | {chr(256 + at): byte for at, byte in enumerate(moved)}
