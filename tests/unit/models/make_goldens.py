"""Make the golden files of this folder with torch and transformers: `make_goldens.py DEMO_MODEL_FOLDER`.

Not a test, and not run by the tests, which need neither package.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoTokenizer, MixtralConfig, MixtralForCausalLM, __version__

DATA = Path(__file__).parent / "data"

CHATS = [
    ([("user", "What is the capital of France? Answer in one sentence.")], True),
    (
        [
            ("system", "Be brief."),
            ("user", "Hi <b>&\n there"),
            ("assistant", "Hello!"),
            ("user", "Größe 7?"),
        ],
        True,
    ),
    ([("user", "x"), ("assistant", "y")], False),
]
TEXTS = [
    "In 1492 there were 3+4=7 ships.",
    " leading and trailing  ",
    "naïve café — 日本語 😀👩‍👩‍👧 \u0301",
    "tab\tnew\n\nline\r\n",
    "don't I'LL we've 12345678901234567890",
    "<|im_start|>user\nhi<|im_end|>",
    "",
    "\x00\x7f\u200b\ufeff\ufffd",
    "def f(x):\n    return x**2  # 3.14\n",
]


def tokenizer_golden(folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = []
    for turns, prompt in CHATS:
        messages = [{"role": role, "content": content} for role, content in turns]
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, tokenize=False)
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=prompt, return_dict=False)
        chat.append({"messages": messages, "add_generation_prompt": prompt, "text": text, "ids": ids})
    texts = []
    for text in TEXTS:
        ids = tokenizer(text).input_ids
        texts.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=True)})
    golden = {"source": f"transformers {__version__}", "chat": chat, "texts": texts}
    (DATA / "golden_tokenizer.json").write_text(json.dumps(golden, indent=1) + "\n")


def checkpoint_golden() -> None:
    """What transformers writes, and the experts that it held in memory as fused tensors."""
    torch.manual_seed(0)
    config = MixtralConfig(
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=16,
        num_local_experts=2,
        max_position_embeddings=64,
        sliding_window=16,
        dtype="bfloat16",
    )
    model = MixtralForCausalLM(config).to(torch.bfloat16)
    model.save_pretrained(DATA / "transformers_mixtral")
    held = {
        name: parameter.data.contiguous().view(torch.uint16).flatten().tolist()
        for name, parameter in model.named_parameters()
        if ".mlp." in name
    }
    (DATA / "transformers_in_memory.json").write_text(json.dumps(held) + "\n")


if __name__ == "__main__":
    tokenizer_golden(sys.argv[1])
    checkpoint_golden()
