"""Turn a stream of token ids into a stream of text that never shows half a character."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Protocol

from colibri.models.token_bytes import TokenBytes
from colibri.models.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_CONTEXT = 8
"""Ids before the stream that are decoded with it: decoders join words and strip spaces by what stands before.
"""
_LOOK_BACK = 64
_MAX_HELD = 32
"""Ids without a whole character at the end after which the text is taken to be broken and not unfinished."""


class IncrementalDetokenizer:
    """Turns the tokens of one growing sequence into text. Joined, the pieces are what `decode` would return.

    A character may take several tokens. Its text is held back until it is complete, or can no longer become a
    character: then it reads U+FFFD. Use one instance per sequence, in one thread.

    context: ids before the first, such as the prompt's; their text is not repeated.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        self._special = tokenizer.special
        before = [i for i in context[-_LOOK_BACK:] if i not in tokenizer.special]
        known = tokenizer.token_bytes
        self._text: _Growing = _ByWindow(tokenizer, before) if known is None else _ByBytes(known, before)

    def push(self, token: int) -> str:
        """Returns the text that is complete now that `token` came: often one token's, sometimes none."""
        return "" if token in self._special else self._text.push(token)

    def finish(self) -> str:
        """Returns the text that is still held, and ends the sequence. An unfinished character reads U+FFFD, as in
        `decode`.
        """
        return self._text.finish()


class _Growing(Protocol):
    def push(self, token: int) -> str: ...

    def finish(self) -> str: ...


class _ByBytes:
    """Decodes if each token's bytes are known: a UTF-8 decoder that keeps an unfinished character between tokens."""

    def __init__(self, known: TokenBytes, before: Sequence[int]) -> None:
        self._known = known
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        # Any of these ids that begins a character puts the decoder in step with the text.
        self._utf8.decode(b"".join(map(known.of_token, before)))
        self._to_strip = 0 if before else known.stripped

    def push(self, token: int) -> str:
        return self._out(self._utf8.decode(self._known.of_token(token)))

    def finish(self) -> str:
        return self._out(self._utf8.decode(b"", final=True))

    def _out(self, text: str) -> str:
        if self._to_strip and text:
            text, self._to_strip = self._known.begin(text, self._to_strip)
        return text


class _ByWindow:
    """Decodes with any other decoder: decodes the last few ids again with each new one."""

    def __init__(self, tokenizer: Tokenizer, before: list[int]) -> None:
        self._tokenizer = tokenizer
        # The window that is decoded: `_settled` ids of context, whose text is out, then ids that are held.
        # The first `_sent` characters of the window's text are out.
        self._ids = self._whole_context(before)
        self._settled = len(self._ids)
        self._sent = len(self._text().rstrip(_REPLACEMENT))

    def push(self, token: int) -> str:
        self._ids.append(token)
        text = self._text()
        whole = text.rstrip(_REPLACEMENT)
        full = len(self._ids) - self._settled > _MAX_HELD
        if len(whole) == len(text) and (len(text) > self._sent or full):
            piece = text[self._sent :]
            self._settle(self._ids[self._settled :], 0)
            return piece
        if full:
            # Broken bytes, not an unfinished character: only the last one can still become something else.
            piece = text[self._sent : -1]
            self._settle(self._ids[-_CONTEXT:], 1)
            return piece
        piece = whole[self._sent :]
        self._sent = max(self._sent, len(whole))
        return piece

    def finish(self) -> str:
        piece = self._text()[self._sent :]
        self._settle([], 0)
        return piece

    def _settle(self, ids: list[int], held_characters: int) -> None:
        self._ids = ids
        self._settled = len(ids)
        self._sent = max(0, len(self._text()) - held_characters)

    def _whole_context(self, ids: list[int]) -> list[int]:
        """Returns the last few ids, or a few more if they would begin inside a character."""
        for length in range(_CONTEXT, _CONTEXT + 4):
            if not self._tokenizer.decode(ids[-length:]).startswith(_REPLACEMENT):
                return ids[-length:]
        return ids[-_CONTEXT:]

    def _text(self) -> str:
        return self._tokenizer.decode(self._ids)
