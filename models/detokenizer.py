"""Turn a stream of token ids into a stream of text that never shows half a character."""

from __future__ import annotations

from collections.abc import Sequence

from colibri.models.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"
_CONTEXT = 8
"""Ids before the stream that are decoded with it: decoders join words and strip spaces by what stands before.
"""
_MAX_HELD = 32
"""Ids without a whole character at the end after which the text is taken to be broken and not unfinished."""


class IncrementalDetokenizer:
    """Text of one growing sequence. `push` and `finish` give the pieces; joined they are what `decode` would
    give.

    A character may take several tokens; its text is held back until it is whole. `context`: ids before the
    first (the prompt's); their text is not repeated. One instance per sequence, not shared between threads.
    """

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        self._ids = list(context[-_CONTEXT:])
        # The first `_sent` characters of the window's text are given out; ids from `_settled` on are held.
        self._settled = len(self._ids)
        self._sent = len(self._text().rstrip(_REPLACEMENT))

    def push(self, token: int) -> str:
        """The text that is whole now that `token` came; often one token's, maybe empty."""
        self._ids.append(token)
        text = self._text()
        whole = text.rstrip(_REPLACEMENT)
        if len(whole) == len(text):
            piece = text[self._sent :]
            # Keep the tokens of this piece as the context of the next.
            self._ids = self._ids[max(0, min(self._settled, len(self._ids) - _CONTEXT)) :]
            self._settled = len(self._ids)
            self._sent = len(self._text())
            return piece
        if len(self._ids) - self._settled > _MAX_HELD:
            # Broken bytes, not an unfinished character: only the last one can still become something else.
            whole = text[:-1]
            piece = whole[self._sent :]
            self._ids = self._ids[-_CONTEXT:]
            self._settled = len(self._ids)
            self._sent = max(0, len(self._text()) - 1)
            return piece
        piece = whole[self._sent :]
        self._sent = max(self._sent, len(whole))
        return piece

    def finish(self) -> str:
        """What is still held: an unfinished character reads U+FFFD, as in `decode`. The sequence is over
        then.
        """
        piece = self._text()[self._sent :]
        self._ids, self._settled, self._sent = [], 0, 0
        return piece

    def _text(self) -> str:
        return self._tokenizer.decode(self._ids)
