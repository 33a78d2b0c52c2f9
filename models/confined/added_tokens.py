"""Add tokens that are only in tokenizer_config.json (`added_tokens_decoder`), as transformers does."""

from __future__ import annotations

from typing import Any

import tokenizers

from colibri.errors import CheckpointError

FIELD = "added_tokens_decoder"
_FLAGS = ("special", "single_word", "lstrip", "rstrip")


def add_tokens(inner: tokenizers.Tokenizer, stated: Any, vocab: int, where: str) -> None:
    """Adds the tokens of `added_tokens_decoder`, in the order of their ids; their flags beat tokenizer.json's.

    stated: what tokenizer_config.json says, None where it says nothing.
    vocab: ids that the model has.
    where: the file, for errors.
    Raises CheckpointError for what is no token, and for one that would get another id than the file says.
    """
    if stated is None:
        return
    if not isinstance(stated, dict) or len(stated) > vocab:
        raise _wrong(FIELD, f"an object of at most {vocab} tokens by id", type(stated).__name__, where)
    for index in sorted(_ids(stated, vocab, where)):
        token = _token(stated[str(index)], f"{FIELD}.{index}", where)
        add = inner.add_special_tokens if token.special else inner.add_tokens
        add([token])
        found = inner.token_to_id(token.content)
        if found != index:
            raise _wrong(
                f"{FIELD}.{index}",
                f"the id that tokenizer.json leaves for {token.content!r}, {found}",
                index,
                where,
            )


def _ids(stated: dict[str, Any], vocab: int, where: str) -> list[int]:
    for key in stated:
        if not (key.isascii() and key.isdecimal() and str(int(key[:12])) == key and int(key) < vocab):
            raise _wrong(FIELD, f"ids from 0 to {vocab - 1} as keys", key, where)
    return [int(key) for key in stated]


def _token(value: Any, field: str, where: str) -> tokenizers.AddedToken:
    content = value.get("content") if isinstance(value, dict) else None
    if not isinstance(content, str) or not content:
        raise _wrong(field, "an object with `content`", value, where)
    flags = {flag: value.get(flag, False) for flag in _FLAGS}
    flags.setdefault("normalized", value.get("normalized", not flags["special"]))
    for flag, on in flags.items():
        if not isinstance(on, bool):
            raise _wrong(f"{field}.{flag}", "true or false", on, where)
    return tokenizers.AddedToken(content, **flags)


def _wrong(field: str, expected: str, got: object, where: str) -> CheckpointError:
    return CheckpointError.of(where, field, expected, repr(got))
