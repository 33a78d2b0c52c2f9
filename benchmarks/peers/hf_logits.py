"""Runs in .venv-peers: fp32 logits of a Hugging Face folder. `hf_logits.py MODEL IN.npz OUT.npz`

IN holds integer arrays, one token sequence each; OUT gets fp32 logits [tokens, vocab] under the same names, from
one forward pass per sequence (eager attention and experts: the plainest path).
"""

from __future__ import annotations

import sys

import numpy as np
import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    model_dir, source, target = sys.argv[1:4]
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    out = {}
    with torch.inference_mode(), np.load(source, allow_pickle=False) as sequences:
        for name in sequences.files:
            ids = torch.from_numpy(sequences[name].astype(np.int64))[None]
            out[name] = model(input_ids=ids, use_cache=False).logits[0].float().numpy()
    np.savez(target, **out)


main()
