"""Runs in .venv-peers: a Hugging Face folder as a bf16 GGUF file. `llama_convert.py TREE MODEL OUT.gguf`

TREE: a source tree of llama.cpp. Its converter refuses tokenizers that it has never met; prompts of these benchmarks
are ids, so that any of them would do.
"""

from __future__ import annotations

import sys


def main() -> None:
    tree, model, out = sys.argv[1:]
    sys.path[:0] = [tree, f"{tree}/gguf-py"]
    import convert_hf_to_gguf
    from conversion.base import TextModel

    TextModel.get_vocab_base_pre = lambda self, tokenizer: "gpt-2"
    sys.argv = ["convert_hf_to_gguf.py", model, "--outtype", "bf16", "--outfile", out]
    convert_hf_to_gguf.main()


main()
