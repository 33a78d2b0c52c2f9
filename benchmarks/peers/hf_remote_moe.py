"""Runs in .venv-peers: a transformers program before and after remote_moe. `hf_remote_moe.py MODEL TARGET NEW`

Reads a JSON list of prompts (lists of ids) and writes one JSON object: for each prompt the greedy answers of both,
the local run's margins, how far the logits of one pass over prompt and local answer differ, and whether the clear
ones choose the same; and milliseconds per layer and decode step. MODEL may be changed first: `--scramble-gate`
swaps two rows of a gate, `--layers N` cuts the model, and the refusal of remote_moe is told instead.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
from transformers import AutoModelForCausalLM

from colibri.client import remote_moe
from colibri.errors import ColibriError, InvalidInput


class LocalTimes:
    """Seconds that the model's own MoE blocks take."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.calls, self.seconds, self._begun = 0, 0.0, 0.0
        self._hooks = []
        for layer in model.model.layers:
            self._hooks += [
                layer.mlp.register_forward_pre_hook(self._begin),
                layer.mlp.register_forward_hook(self._end),
            ]

    def _begin(self, *_: object) -> None:
        self._begun = time.perf_counter()

    def _end(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._begun
        self.calls += 1

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def greedy(model: torch.nn.Module, prompt: list[int], new: int) -> list[int]:
    """As a program would: transformers' own generate."""
    out = model.generate(
        input_ids=torch.tensor([prompt]),
        max_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
    )
    ids: list[int] = out[0, len(prompt) :].tolist()
    return ids


def decode(model: torch.nn.Module, prompt: list[int], new: int) -> None:
    """Single rows, for the clock."""
    step = model(input_ids=torch.tensor([prompt]), use_cache=True)
    for _ in range(new):
        token = step.logits[0, -1].argmax().view(1, 1)
        step = model(input_ids=token, past_key_values=step.past_key_values, use_cache=True)


def whole(model: torch.nn.Module, ids: list[int]) -> torch.Tensor:
    return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("target")
    parser.add_argument("new", type=int)
    parser.add_argument("--scramble-gate", action="store_true")
    parser.add_argument("--layers", type=int)
    args = parser.parse_args()
    prompts = json.load(sys.stdin)
    torch.set_num_threads(2)
    model = AutoModelForCausalLM.from_pretrained(
        args.model, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    # Answers of one length, by the likeliest token alone.
    model.generation_config.eos_token_id = None
    if args.scramble_gate:
        weight = model.model.layers[-1].mlp.gate.weight.data
        weight[:2] = weight[:2].flip(0)
    if args.layers is not None:
        model.model.layers = model.model.layers[: args.layers]
    if args.scramble_gate or args.layers is not None:
        try:
            remote_moe(model, args.target)
        except InvalidInput as error:
            untouched = type(model.model.layers[-1].mlp).__name__
            print(json.dumps({"refused": str(error), "block": untouched}))
        return

    with torch.inference_mode():
        local = [greedy(model, prompt, args.new) for prompt in prompts]
        pairs = list(zip(prompts, local, strict=True))
        before = [whole(model, [*prompt, *answer]) for prompt, answer in pairs]
        decode(model, prompts[0], 4)
        times = LocalTimes(model)
        decode(model, prompts[0], args.new)
        times.remove()
    weights = sum(parameter.numel() for parameter in model.parameters())

    with remote_moe(model, args.target) as remote:
        # No inference mode: the parameters ask for no gradients any more.
        far = [greedy(model, prompt, args.new) for prompt in prompts]
        after = [whole(model, [*prompt, *answer]) for prompt, answer in pairs]
        decode(model, prompts[0], 4)
        so_far = remote.layers()
        decode(model, prompts[0], args.new)
        calls = {
            at: (now.calls - so_far[at].calls, now.seconds - so_far[at].seconds)
            for at, now in remote.layers().items()
        }
        poisoned = torch.zeros(1, 2, model.config.hidden_size)
        poisoned[0, 1, 3] = float("nan")
        spoiled = model.model.layers[0].mlp(poisoned)[0]
        try:
            model.model.layers[0].mlp(poisoned.clone().requires_grad_())
            gradient = ""
        except InvalidInput as error:
            gradient = str(error)
    try:
        greedy(model, prompts[0], 1)
        closed = ""
    except (ColibriError, ValueError) as error:
        closed = str(error)

    answers = []
    for (prompt, answer), theirs, b, a in zip(pairs, far, before, after, strict=True):
        scale = float(b.abs().max())
        top = b[len(prompt) - 1 : -1].topk(2).values
        margins = ((top[:, 0] - top[:, 1]) / scale).tolist()
        chosen = a[len(prompt) - 1 : -1].argmax(dim=1).tolist()
        answers.append(
            {
                "local": answer,
                "remote": theirs,
                "margins": margins,
                "forced": chosen,
                "error": float((a - b).abs().max()) / scale,
            }
        )
    print(
        json.dumps(
            {
                "answers": answers,
                "local_ms": 1e3 * times.seconds / times.calls,
                "remote_ms": {at: 1e3 * seconds / count for at, (count, seconds) in calls.items()},
                "parameters": [weights, sum(parameter.numel() for parameter in model.parameters())],
                "finite": torch.isfinite(spoiled).all(dim=1).tolist(),
                "gradient": gradient,
                "closed": closed,
                "repr": repr(model.model.layers[0].mlp),
            }
        )
    )


main()
