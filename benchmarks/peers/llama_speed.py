"""Runs in .venv-peers: llama.cpp over a GGUF file that stays loaded. `llama_speed.py MODEL.gguf`

Same lines as hf_speed.py: {"prompt": [ids], "new": N} -> {"prefill_s", "decode_s", "ids"}, greedy, two threads.
"""

from __future__ import annotations

import json
import sys
import time

import llama_cpp
import numpy as np
from llama_cpp import Llama


def generate(model: Llama, prompt: list[int], new: int) -> dict[str, object]:
    def likeliest() -> int:
        logits = llama_cpp.llama_get_logits_ith(model.ctx, -1)
        return int(np.argmax(np.ctypeslib.as_array(logits, (model.n_vocab(),))))

    model.reset()
    start = time.perf_counter()
    model.eval(prompt)
    ids = [likeliest()]
    middle = time.perf_counter()
    for _ in range(new):
        model.eval(ids[-1:])
        ids.append(likeliest())
    return {"prefill_s": middle - start, "decode_s": time.perf_counter() - middle, "ids": ids}


def main() -> None:
    model = Llama(
        sys.argv[1], n_ctx=1024, n_batch=512, n_ubatch=512, n_threads=2, n_threads_batch=2, verbose=False
    )
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(generate(model, request["prompt"], request["new"])), flush=True)


main()
