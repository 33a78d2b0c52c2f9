"""Runs in .venv-peers: transformers' Mixtral block, bf16, two threads. `hf_moe_layer.py`

Hidden 2048, ffn 7168, 8 experts, top-2. Prints {"seconds": {rows: median of a call}, "experts": {rows: which}}, of the
quicker of its two experts implementations (eager, grouped_mm) for each number of rows.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np
import torch
from transformers import MixtralConfig
from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

HIDDEN, FFN, EXPERTS = 2048, 7168, 8
#: Rows -> calls, as benchmarks/cpu_kernels/layer_arm.py has them.
CALLS = {1: 41, 8: 21, 64: 11, 512: 5}


def rows_of(count: int, index: int) -> torch.Tensor:
    draw = np.random.Generator(np.random.SFC64([count, index]))
    return torch.from_numpy(draw.standard_normal((1, count, HIDDEN), dtype=np.float32)).bfloat16()


def gate_weight() -> torch.Tensor:
    """The same as layer_arm's, so that the same rows go to the same experts."""
    draw = np.random.Generator(np.random.SFC64(11)).standard_normal((EXPERTS, HIDDEN), dtype=np.float32)
    bits = (draw * np.float32(HIDDEN**-0.5)).view(np.uint32) & np.uint32(0xFFFF0000)
    return torch.from_numpy(bits.view(np.float32)).bfloat16()


def median(block: torch.nn.Module, inputs: list[torch.Tensor]) -> float:
    block(inputs[-1])
    found = []
    for x in inputs[:-1]:
        start = time.perf_counter()
        block(x)
        found.append(time.perf_counter() - start)
    return statistics.median(found)


def main() -> None:
    torch.set_num_threads(2)
    config = MixtralConfig(
        hidden_size=HIDDEN, intermediate_size=FFN, num_local_experts=EXPERTS, num_experts_per_tok=2,
        num_attention_heads=16, num_key_value_heads=8,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    block = MixtralSparseMoeBlock(config).eval()
    torch.set_default_dtype(torch.float32)
    seconds: dict[int, float] = {}
    which: dict[int, str] = {}
    with torch.inference_mode():
        for parameter in block.parameters():
            parameter.normal_(0, HIDDEN**-0.5)
        block.gate.weight.copy_(gate_weight())
        for implementation in ("eager", "grouped_mm"):
            config._experts_implementation = implementation
            block.experts.config = config
            for count, calls in CALLS.items():
                took = median(block, [rows_of(count, index) for index in range(calls + 1)])
                if took < seconds.get(count, float("inf")):
                    seconds[count], which[count] = took, implementation
    print(json.dumps({"seconds": seconds, "experts": which}))


main()
