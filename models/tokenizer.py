"""Text to token ids and back, by the `tokenizers` library and the checkpoint's tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tokenizers

from colibri.errors import CheckpointError, InvalidInput
from colibri.models.added_tokens import add_tokens
from colibri.models.config import MixtralConfig, wrong
from colibri.models.json_file import read_bounded, read_object

TOKENIZER_NAME = "tokenizer.json"
CONFIG_NAME = "tokenizer_config.json"
_MAX_TOKENIZER_BYTES = 128 << 20
_MAX_CONFIG_BYTES = 16 << 20
#: Without a model: 24 bits, more than any vocabulary.
_MOST_IDS = 1 << 24


class Tokenizer:
    """A checkpoint's tokenizer; safe to share between threads.

    `vocab`: number of ids it knows; `special`: ids of control tokens; `bos`: id or None; `add_bos`: whether a
    plain text begins with it; `bos_text`, `eos_text`: how these read in a chat template.
    """

    def __init__(
        self, inner: tokenizers.Tokenizer, settings: dict[str, Any], config: MixtralConfig | None = None
    ) -> None:
        # Whatever tokenizer.json was saved with: prompts are checked against limits, never cut silently.
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        add_tokens(inner, settings, _MOST_IDS if config is None else config.vocab, CONFIG_NAME)
        self.vocab = inner.get_vocab_size(with_added_tokens=True)
        if config is not None:
            if self.vocab > config.vocab:
                raise wrong(
                    "vocabulary", f"at most vocab_size = {config.vocab} tokens", self.vocab, TOKENIZER_NAME
                )
            largest = max(inner.get_vocab(with_added_tokens=True).values(), default=0)
            if largest >= config.vocab:
                raise wrong("vocabulary", f"ids from 0 to {config.vocab - 1}", largest, TOKENIZER_NAME)
        if dropout := getattr(inner.model, "dropout", None):
            raise wrong(
                "model.dropout", "none, since equal texts must give equal ids", dropout, TOKENIZER_NAME
            )
        added = inner.get_added_tokens_decoder()
        self.special = frozenset(i for i, token in added.items() if token.special)
        self.bos_text = _token_text(settings, "bos_token")
        self.eos_text = _token_text(settings, "eos_token")
        self.bos = inner.token_to_id(self.bos_text) if self.bos_text else config.bos if config else None
        self.add_bos = self._bos_rule(settings)
        # Where set, a control token spelled out in a text stays text, as in transformers.
        inner.encode_special_tokens = _flag(settings, "split_special_tokens") or False

    @classmethod
    def load(cls, folder: str | Path, config: MixtralConfig | None = None) -> Tokenizer:
        """From tokenizer.json and, if there is one, tokenizer_config.json of a checkpoint folder.

        Raises CheckpointError if a file is missing, damaged, too large or holds more tokens than the model.
        """
        path = Path(folder) / TOKENIZER_NAME
        raw = read_bounded(path, _MAX_TOKENIZER_BYTES)
        try:
            inner = tokenizers.Tokenizer.from_buffer(raw)
        except BaseException as error:
            raise _librarys(error, str(path), "a tokenizer", "none") from error
        settings_path = Path(folder) / CONFIG_NAME
        settings = read_object(settings_path, _MAX_CONFIG_BYTES) if settings_path.exists() else {}
        return cls(inner, settings, config)

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids of `text`. Control tokens spelled out in it become their ids, as in transformers, unless the
        checkpoint sets split_special_tokens.

        With `add_special`, the text begins with exactly one BOS if the checkpoint wants one at all: none is
        added before one that is there. Nothing is ever put at the end. Rendered chat templates write their
        own BOS: pass False. Raises InvalidInput for text that is no valid Unicode.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidInput("text", "valid Unicode without lone surrogates", error.reason) from None
        try:
            ids = list(self._inner.encode(text, add_special_tokens=False).ids)
        except BaseException as error:  # a vocabulary without the unknown token, for one
            raise _librarys(error, TOKENIZER_NAME, "a tokenizer that takes any text", "an error") from error
        if add_special and self.add_bos and self.bos is not None and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of the ids; bytes that are no UTF-8 read U+FFFD. Raises InvalidInput for a bad id."""
        for i in ids:
            if not 0 <= i < 1 << 32:
                raise InvalidInput("ids", "token ids, which are never negative and have 32 bits", i)
        return self._inner.decode(list(ids), skip_special_tokens=skip_special)

    def _bos_rule(self, settings: dict[str, Any]) -> bool:
        stated = _flag(settings, "add_bos_token")
        if stated is not None:
            if stated and self.bos is None:
                raise wrong("bos_token", "a token, since add_bos_token is true", self.bos_text, CONFIG_NAME)
            return stated
        # Silent configuration: what the file's own post-processor does to an empty text.
        return self.bos is not None and self._inner.encode("").ids[:1] == [self.bos]


def _librarys(error: BaseException, where: str, expected: str, got: str) -> BaseException:
    """The library raises plain Exception, and PanicException, which is none, where its Rust code panics; whatever
    else came is returned as it is."""
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return CheckpointError.of(where, "", expected, f"{got}: {error}")
    return error


def _flag(settings: dict[str, Any], field: str) -> bool | None:
    """A switch in tokenizer_config.json; None where it says nothing."""
    value = settings.get(field)
    if value is not None and not isinstance(value, bool):
        raise wrong(field, "true or false", value, CONFIG_NAME)
    return value


def _token_text(settings: dict[str, Any], field: str) -> str | None:
    """A special token in tokenizer_config.json: a string, or an object with its text in `content`."""
    value = settings.get(field)
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise wrong(field, "a string or an object with `content`", value, CONFIG_NAME)
    return value
