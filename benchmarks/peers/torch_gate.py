"""Runs in .venv-peers: torch's gate over 4096 rows of logits. `torch_gate.py EXPERTS ...`

Softmax, top-2, renormalise, as transformers' router does; two threads. Prints {"seconds": {experts: median of a call}}.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import numpy as np
import torch

ROWS, CALLS = 4096, 31


def gate(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, experts = torch.topk(torch.nn.functional.softmax(logits, dim=-1), 2, dim=-1)
    return values / values.sum(dim=-1, keepdim=True), experts


def main() -> None:
    torch.set_num_threads(2)
    seconds = {}
    with torch.inference_mode():
        for experts in map(int, sys.argv[1:]):
            draw = np.random.Generator(np.random.SFC64(experts))
            logits = torch.from_numpy(draw.standard_normal((ROWS, experts), dtype=np.float32))
            gate(logits)
            found = []
            for _ in range(CALLS):
                start = time.perf_counter()
                gate(logits)
                found.append(time.perf_counter() - start)
            seconds[experts] = statistics.median(found)
    print(json.dumps({"seconds": seconds}))


main()
