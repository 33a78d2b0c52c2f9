"""The text of one choice as it grows: whole characters, whole glyphs, and nothing of a stop string."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from colibri.coordinator.stop_strings import StopMatcher
from colibri.models.detokenizer import IncrementalDetokenizer
from colibri.models.graphemes import closed_end
from colibri.models.tokenizer import Tokenizer


class AnswerText:
    """Builds the text of one choice. The text sent after each token depends on the tokens alone, so an answer resumes
    anywhere.

    Not shared between threads.

    context: the prompt's last ids, which are decoded with the first of the answer.
    stop: strings that end the answer; `stopped` is the one that did.
    silent: ids without text, since they end the answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context: Sequence[int],
        stop: Sequence[str] = (),
        silent: Iterable[int] = (),
    ) -> None:
        self._decoder = IncrementalDetokenizer(tokenizer, context)
        self._matcher = StopMatcher(stop) if stop else None
        self._silent = frozenset(silent)
        self._held = ""
        self.stopped: str | None = None

    def push(self, token: int, *, may_stop: bool = True) -> str:
        """Returns the text that may go out now that `token` came.

        may_stop: a stop string that the token completes ends the answer.
        """
        if token in self._silent:
            return ""
        piece = self._decoder.push(token)
        if not piece:
            return ""
        before = len(self._held)
        text = self._held + piece
        limit = None
        if self._matcher is not None:
            found = self._matcher.read(piece, counts=may_stop)
            if found is not None:
                end, self.stopped = found
                self._held = ""
                return text[: before + end - len(self.stopped)]
            limit = len(text) - self._matcher.held
        out = closed_end(text, limit)
        self._held = text[out:]
        return text[:out]

    def finish(self) -> str:
        """Returns the text still held when the answer ends without a stop string. Bytes of an unfinished character are
        left out.
        """
        held, self._held = self._held, ""
        return held
