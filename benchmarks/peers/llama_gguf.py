"""Runs in .venv-peers: quantises a GGUF file. `llama_gguf.py IN.gguf OUT.gguf q4_0|q8_0`"""

from __future__ import annotations

import sys

import llama_cpp

FORMATS = {"q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}


def main() -> None:
    source, out, kind = sys.argv[1:]
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.nthread = FORMATS[kind], 2
    if llama_cpp.llama_model_quantize(source.encode(), out.encode(), params):
        raise SystemExit(f"{source}: could not be quantised as {kind}")


main()
