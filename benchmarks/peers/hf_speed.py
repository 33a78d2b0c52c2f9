"""Runs in .venv-peers: a transformers bf16 arm that stays loaded. `hf_speed.py MODEL`

Reads JSON lines {"prompt": [ids], "new": N} and answers each with {"prefill_s", "decode_s", "ids"}: one prefill,
then N greedy steps with the KV cache. So its runs can alternate with another arm's in one measurement.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM


def generate(model: torch.nn.Module, prompt: list[int], new: int) -> dict[str, object]:
    start = time.perf_counter()
    step = model(input_ids=torch.tensor([prompt]), use_cache=True)
    token = step.logits[0, -1].argmax().view(1, 1)
    middle = time.perf_counter()
    ids = [int(token)]
    for _ in range(new):
        step = model(input_ids=token, past_key_values=step.past_key_values, use_cache=True)
        token = step.logits[0, -1].argmax().view(1, 1)
        ids.append(int(token))
    return {"prefill_s": middle - start, "decode_s": time.perf_counter() - middle, "ids": ids}


def main() -> None:
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
    print(json.dumps({"ready": True}), flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            request = json.loads(line)
            print(json.dumps(generate(model, request["prompt"], request["new"])), flush=True)


main()
