"""Find how many bytes of text one token can stand for at most, so that a text that cannot fit is refused unread.

There is a bound only if every step of the tokenizer is known to keep it. Otherwise the result is None, and the text
is encoded within the confined process's own bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

#: Bytes of a text per byte of its normal form, at most. Unicode's composed forms stand for at most four code points
#: of which none is longer than itself; twice that is safe.
_COMPOSING = 8
_NORMALIZERS = {
    "NFC": _COMPOSING,
    "NFD": _COMPOSING,
    "NFKC": _COMPOSING,
    "NFKD": _COMPOSING,
    "Lowercase": 4,
    "Prepend": 1,
    "ByteLevel": 1,
}
#: These drop no text.
_PRE_TOKENIZERS = frozenset({"ByteLevel", "Digits", "Metaspace", "UnicodeScripts", "Split", "Punctuation"})


def most_bytes_per_token(raw: Mapping[str, Any]) -> int | None:
    """Returns the bound, or None. raw: a tokenizer.json as the library writes it."""
    shrinks = _shrinkage(raw.get("normalizer"))
    added = raw.get("added_tokens") or []
    # A token that takes the blanks beside it may stand for any number of them.
    if (
        shrinks is None
        or not _keeps_text(raw.get("pre_tokenizer"))
        or any(token["lstrip"] or token["rstrip"] for token in added)
    ):
        return None
    model = raw["model"]
    kind, vocabulary = model.get("type"), model.get("vocab")
    if kind == "BPE":
        tokens: Iterable[str] = vocabulary
        known = set(vocabulary)
    elif kind == "Unigram":
        tokens = [piece for piece, _ in vocabulary]
        known = set(tokens)
    else:
        return None
    if not _every_byte_is_known(raw, model, known):
        return None
    longest = max((len(token.encode()) for token in tokens), default=1)
    return max([longest, 4, *(len(token["content"].encode()) for token in added)]) * shrinks


def _shrinkage(normalizer: Mapping[str, Any] | None) -> int | None:
    if normalizer is None:
        return 1
    if normalizer["type"] == "Sequence":
        product = 1
        for each in normalizer["normalizers"]:
            factor = _shrinkage(each)
            if factor is None:
                return None
            product *= factor
        return product
    if normalizer["type"] == "Replace":
        pattern = normalizer["pattern"].get("String")
        longer = pattern is not None and len(normalizer["content"].encode()) >= len(pattern.encode())
        return 1 if longer else None
    return _NORMALIZERS.get(normalizer["type"])


def _keeps_text(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return True
    if pre_tokenizer["type"] == "Sequence":
        return all(map(_keeps_text, pre_tokenizer["pretokenizers"]))
    return pre_tokenizer["type"] in _PRE_TOKENIZERS and pre_tokenizer.get("behavior") != "Removed"


def _every_byte_is_known(raw: Mapping[str, Any], model: Mapping[str, Any], known: set[str]) -> bool:
    """Whether every byte becomes a token. Otherwise text may be dropped, or a run of unknown characters become one
    token.
    """
    if model.get("byte_fallback") and all(f"<0x{byte:02X}>" in known for byte in range(256)):
        return True
    return _byte_level(raw.get("pre_tokenizer")) and set(byte_letters()) <= known


def _byte_level(pre_tokenizer: Mapping[str, Any] | None) -> bool:
    if pre_tokenizer is None:
        return False
    if pre_tokenizer["type"] == "Sequence":
        return any(map(_byte_level, pre_tokenizer["pretokenizers"]))
    return bool(pre_tokenizer["type"] == "ByteLevel")


def byte_letters() -> list[str]:
    """Returns the letters that stand for bytes in byte-level vocabularies, as GPT-2 chose them."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = (chr(0x100 + at) for at in range(256 - len(shown)))
    return [chr(byte) if byte in shown else next(hidden) for byte in range(256)]
