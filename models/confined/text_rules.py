"""Check a tokenizer whose decoder runs in the server's own process, one token at a time.

Decoding is the engine's work, so the decoder's form must bound it: no regular expression, tokens of bounded length,
and text that grows by a bounded factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from colibri.errors import CheckpointError

MAX_TOKEN_BYTES = 4096
_MAX_STEPS = 64
_MAX_GROWTH = 64.0
_KNOWN = frozenset(
    {"BPEDecoder", "ByteLevel", "WordPiece", "Metaspace", "CTC", "ByteFallback", "Fuse", "Strip", "Replace"}
)


def check_tokens(tokens: Iterable[str], where: str) -> None:
    """Raises CheckpointError naming a token that is too long."""
    for token in tokens:
        if len(token) * 4 > MAX_TOKEN_BYTES and (size := len(token.encode())) > MAX_TOKEN_BYTES:
            raise CheckpointError.of(
                where, "vocabulary", f"tokens of at most {MAX_TOKEN_BYTES} bytes", f"one of {size} bytes"
            )


def check_decoder(decoder: Mapping[str, Any] | None, where: str) -> None:
    """Checks a decoder as it is in tokenizer.json. Raises CheckpointError naming what it may not hold."""
    steps = _steps(decoder)
    if len(steps) > _MAX_STEPS:
        raise CheckpointError.of(where, "decoder", f"at most {_MAX_STEPS} steps", len(steps))
    growth = 1.0
    for step in steps:
        if step["type"] not in _KNOWN:
            raise CheckpointError.of(where, "decoder", f"one of {', '.join(sorted(_KNOWN))}", step["type"])
        if step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if not pattern:
                got = "a regular expression" if "Regex" in step["pattern"] else "an empty text"
                raise CheckpointError.of(where, "decoder.pattern", "a text to replace", got)
            growth *= max(1.0, len(step["content"].encode()) / len(pattern.encode()))
    if growth > _MAX_GROWTH:
        raise CheckpointError.of(
            where,
            "decoder",
            f"replacements that make a text at most {_MAX_GROWTH:g} times as long",
            f"{growth:.6g}",
        )


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    left = [decoder] if decoder is not None else []
    while left:
        step = left.pop()
        if step["type"] == "Sequence":
            left += step["decoders"]
        else:
            found.append(step)
    return found
