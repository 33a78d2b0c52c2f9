"""Runs in .venv-peers: a Hugging Face folder as a bf16 GGUF file. `llama_convert.py TREE MODEL OUT.gguf`

TREE: a source tree of llama.cpp. The tokenizer is left out, since the prompts of these benchmarks are ids and the
converter refuses tokenizers that it has never met.
"""

from __future__ import annotations

import sys


def main() -> None:
    tree, model, out = sys.argv[1:]
    sys.path[:0] = [tree, f"{tree}/gguf-py"]
    import convert_hf_to_gguf
    from conversion.llama import LlamaModel

    LlamaModel.set_vocab = lambda self: self.gguf_writer.add_tokenizer_model("no_vocab")
    sys.argv = ["convert_hf_to_gguf.py", model, "--outtype", "bf16", "--outfile", out]
    convert_hf_to_gguf.main()


main()
