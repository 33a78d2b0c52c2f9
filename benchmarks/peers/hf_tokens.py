"""Runs in .venv-peers: what transformers makes of texts and chats. `hf_tokens.py MODEL IN.json OUT.json`

IN: {"texts": [text], "chats": [[{"role", "content"}]]}; OUT: {"texts": [ids], "chats": [[text, ids]]}, both with the
tokenizer's own special tokens and the generation prompt.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from transformers import AutoTokenizer


def main() -> None:
    model, source, target = sys.argv[1:4]
    tokenizer = AutoTokenizer.from_pretrained(model)
    asked = json.loads(Path(source).read_text())
    texts = [tokenizer(text)["input_ids"] for text in asked["texts"]]
    chats = []
    for messages in asked["chats"]:
        text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        chats.append([text, ids])
    Path(target).write_text(json.dumps({"texts": texts, "chats": chats}))


main()
