"""Tokens that only tokenizer_config.json has (`added_tokens_decoder`): transformers adds them, and so must we."""

from __future__ import annotations

from typing import Any

import tokenizers

from colibri.models.config import wrong

_FIELD = "added_tokens_decoder"
_FLAGS = ("special", "single_word", "lstrip", "rstrip")


def add_tokens(inner: tokenizers.Tokenizer, settings: dict[str, Any], vocab: int, where: str) -> None:
    """Adds the tokens of `added_tokens_decoder`, in the order of their ids; their flags beat tokenizer.json's.

    settings: tokenizer_config.json.
    vocab: ids that the model has.
    where: the file, for errors.
    Raises CheckpointError for what is no token, and for one that would get another id than the file says.
    """
    stated = settings.get(_FIELD)
    if stated is None:
        return
    if not isinstance(stated, dict) or len(stated) > vocab:
        raise wrong(_FIELD, f"an object of at most {vocab} tokens by id", type(stated).__name__, where)
    for index in sorted(_ids(stated, vocab, where)):
        token = _token(stated[str(index)], f"{_FIELD}.{index}", where)
        add = inner.add_special_tokens if token.special else inner.add_tokens
        add([token])
        found = inner.token_to_id(token.content)
        if found != index:
            raise wrong(
                f"{_FIELD}.{index}",
                f"the id that tokenizer.json leaves for {token.content!r}, {found}",
                index,
                where,
            )


def _ids(stated: dict[str, Any], vocab: int, where: str) -> list[int]:
    for key in stated:
        if not (key.isascii() and key.isdecimal() and str(int(key[:12])) == key and int(key) < vocab):
            raise wrong(_FIELD, f"ids from 0 to {vocab - 1} as keys", key, where)
    return [int(key) for key in stated]


def _token(value: Any, field: str, where: str) -> tokenizers.AddedToken:
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, str) or not content:
        raise wrong(field, "an object with `content`", value, where)
    flags = {flag: value.get(flag, False) for flag in _FLAGS}
    flags.setdefault("normalized", value.get("normalized", not flags["special"]))
    for flag, on in flags.items():
        if not isinstance(on, bool):
            raise wrong(f"{field}.{flag}", "true or false", on, where)
    return tokenizers.AddedToken(content, **flags)
