"""200 texts of our own words: scripts, emoji, code, empty and blank, numbers, special tokens in user text, long."""

from __future__ import annotations

import json
from pathlib import Path

_FILE = Path(__file__).with_name("corpus.json")


def corpus() -> list[str]:
    texts: list[str] = json.loads(_FILE.read_text(encoding="utf-8"))
    return texts


def chats(texts: list[str]) -> list[list[dict[str, str]]]:
    """As many chats as texts, of one to four messages, each text in each role."""

    def message(role: str, at: int) -> dict[str, str]:
        return {"role": role, "content": texts[at % len(texts)]}

    found = []
    for at in range(len(texts)):
        turns = [message("user", at), message("assistant", at + 1), message("user", at + 2)][
            : 1 + 2 * (at % 2)
        ]
        found.append([message("system", at + 3), *turns] if at % 3 == 0 else turns)
    return found
