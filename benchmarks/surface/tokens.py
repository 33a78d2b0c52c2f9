"""Prompts against transformers: ids of 200 texts and of as many chats, on four tokenizers.

One case is left out on purpose: a text that begins with the BOS token spelled out gets one BOS here and two there.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors, trainers

from benchmarks.peers import python, script
from benchmarks.surface.corpus import chats, corpus
from benchmarks.table import Line, Outcome
from colibri.coordinator.prompts import PromptEncoder
from colibri.deadline import Deadline
from colibri.models.chat_renderer import load_chat_renderer
from colibri.models.demo_model import build_demo_model
from colibri.models.home import colibri_home
from colibri.models.plain_tokenizer import write_plain_tokenizer
from colibri.models.tokenizer import Tokenizer as OurTokenizer
from colibri.v1 import generation_pb2 as pb

#: In the manner of Mistral's templates: it writes its own BOS, and an EOS after each answer.
_INST_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
    "{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' %}"
    "{{ ' ' + message['content'] | trim + eos_token }}{% else %}{{ message['content'] + '\\n\\n' }}{% endif %}"
    "{% endfor %}"
)


def measure() -> Outcome:
    texts = corpus()
    differ: dict[str, list[str]] = {}
    total = 0
    with tempfile.TemporaryDirectory() as name:
        folders = {
            "demo model (byte-level BPE, ChatML)": build_demo_model(colibri_home(os.environ)),
            "byte fallback, own BOS, [INST]": _byte_fallback(Path(name, "fallback"), texts),
            "the same, split_special_tokens": _byte_fallback(Path(name, "split"), texts, split=True),
            "byte per token": _plain(Path(name, "plain")),
        }
        for kind, folder in folders.items():
            wrong, count = _compare(folder, texts)
            total += count
            differ[kind] = wrong
    count = sum(map(len, differ.values()))
    return Outcome(
        f"{total - count} of {total} prompts equal ({len(texts)} texts, as many chats, {len(differ)} tokenizers)",
        count == 0,
        "transformers",
        {"differ": differ},
    )


def _compare(folder: Path, texts: Sequence[str]) -> tuple[list[str], int]:
    """Which texts and chats differ, in words, and how many there are."""
    asked: dict[str, Any] = {"texts": texts, "chats": chats(list(texts))}
    theirs = _peer(folder, asked)
    tokenizer = OurTokenizer.load(folder)
    renderer = load_chat_renderer(folder, tokenizer)
    if renderer is None:
        raise ValueError(f"{folder}: no chat template")
    encoder = PromptEncoder(1 << 31, tokenizer, renderer)
    wrong = []
    try:
        for text, expected in zip(texts, theirs["texts"], strict=True):
            if encoder.from_text(text, add_special=True).ids.tolist() != expected:
                wrong.append(f"text {text[:40]!r}")
        for messages, (text, expected) in zip(asked["chats"], theirs["chats"], strict=True):
            chat = pb.Chat(messages=[pb.ChatMessage(**message) for message in messages])
            prompt = encoder.from_chat(chat, Deadline())
            if prompt.text != text or prompt.ids.tolist() != expected:
                wrong.append(f"chat that ends in {messages[-1]['content'][:40]!r}")
    finally:
        renderer.close()
    return wrong, 2 * len(texts)


def _peer(folder: Path, asked: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name, "in.json"), Path(name, "out.json")
        source.write_text(json.dumps(asked))
        command = [python(), script("hf_tokens.py"), str(folder), str(source), str(target)]
        subprocess.run(command, check=True, capture_output=True, timeout=300)
        found: dict[str, Any] = json.loads(target.read_text())
    return found


def _plain(folder: Path) -> Path:
    folder.mkdir()
    write_plain_tokenizer(folder, 300, 4096)
    (folder / "chat_template.jinja").write_text(_INST_TEMPLATE)
    return folder


def _byte_fallback(folder: Path, texts: Sequence[str], *, split: bool = False) -> Path:
    """A tokenizer as Llama's and Mixtral's are made, trained on the corpus: words join over `▁`, what is unknown
    falls back to bytes.
    """
    folder.mkdir()
    control, as_bytes = ["<unk>", "<s>", "</s>"], [f"<0x{byte:02X}>" for byte in range(256)]
    inner = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=[*control, *as_bytes], limit_alphabet=300, show_progress=False
    )
    inner.train_from_iterator([text for text in texts if len(text) < 500], trainer)
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    raw = json.loads(inner.to_str())
    raw["added_tokens"] = [token for token in raw["added_tokens"] if token["content"] in control]
    inner = Tokenizer.from_str(json.dumps(raw))
    inner.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    inner.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": True,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": split,
        "chat_template": _INST_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def lines() -> list[Line]:
    return [
        Line(
            "tokens",
            "chat template and tokenizer output, 200-text corpus",
            "ids equal to transformers'",
            measure,
        )
    ]
