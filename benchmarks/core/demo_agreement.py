"""The demo model against transformers: `python -m benchmarks.core.demo_agreement` rewrites the golden file.

The golden file holds, for each prompt, the peer's greedy fp32 tokens and where its top-2 margin is clear, so that the
tests can hold the fp32 mode to it without torch; `measure` makes the comparison live.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.core.agreement import BOUND, compare, peer_logits
from benchmarks.core.local_stack import LocalStack
from benchmarks.table import Outcome
from colibri.kernels.api import F32, ComputeMode
from colibri.models.chat_renderer import load_chat_renderer
from colibri.models.checkpoint import Checkpoint
from colibri.models.demo_model import build_demo_model
from colibri.models.home import colibri_home
from colibri.models.tokenizer import Tokenizer

GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "golden" / "demo_fp32.json"
NEW = 48
PROMPTS = (
    "What is the capital of France? Answer in one sentence.",
    "Write a short story about a lighthouse keeper who finds a message in a bottle.",
    "Explain why the sky is blue to a ten-year-old.",
    "List five uses of a paper clip.",
    "In 1492 there were 3+4=7 ships. How many ships were there?",
)


def prompt_ids(model: Path) -> list[list[int]]:
    """The prompts under the chat template."""
    tokenizer = Tokenizer.load(model, Checkpoint.open(model).config)
    template = load_chat_renderer(model, tokenizer)
    if template is None:
        raise RuntimeError("the demo model has a chat template")
    rendered = [template.render([{"role": "user", "content": prompt}]) for prompt in PROMPTS]
    return [tokenizer.encode(text, add_special=False) for text in rendered]


def clear_margin(logits: F32, scale: float) -> np.ndarray:
    """bool [tokens]: the two largest logits are further apart than ten bounds."""
    top = np.partition(logits, -2, axis=1)[:, -2:]
    return np.asarray((top[:, 1] - top[:, 0]) > 10 * BOUND * scale)


def mean_kl(of: F32, against: F32) -> float:
    """Mean over positions of KL(against || of), in nats."""

    def log_softmax(x: F32) -> np.ndarray:
        shifted = x.astype(np.float64) - x.max(axis=1, keepdims=True)
        return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))

    p, q = log_softmax(against), log_softmax(of)
    return float((np.exp(p) * (p - q)).sum(axis=1).mean())


def measure() -> Outcome:
    model = build_demo_model(colibri_home(os.environ))
    prompts = prompt_ids(model)
    with LocalStack(model, ComputeMode.FP32) as stack:
        answers = [stack.greedy(prompt, NEW) for prompt in prompts]
        whole = [[*prompt, *answer] for prompt, answer in zip(prompts, answers, strict=True)]
        ours = [stack.logits(ids) for ids in whole]
    with LocalStack(model, ComputeMode.BF16) as stack:
        bf16 = [stack.logits(ids) for ids in whole]
    theirs = peer_logits(model, {str(i): ids for i, ids in enumerate(whole)})
    found = [compare(ours[i], theirs[str(i)], answers[i], len(prompts[i]) - 1) for i in range(len(prompts))]
    equal, compared = (sum(getattr(a, name) for a in found) for name in ("tokens_equal", "tokens_compared"))
    kl = float(np.mean([mean_kl(bf16[i], theirs[str(i)]) for i in range(len(prompts))]))
    return Outcome(
        f"{equal} of {compared} clear tokens equal; worst logit error {max(a.error for a in found):.1e};"
        f" bf16 mode: mean KL {kl:.1e} nats",
        all(a.met for a in found),
        "transformers fp32",
    )


def _peer_greedy(model: Path, prompts: Sequence[Sequence[int]]) -> tuple[list[list[int]], list[list[bool]]]:
    """transformers' greedy answers: ours where they agree, corrected token by token where they do not."""
    with LocalStack(model, ComputeMode.FP32) as stack:
        answers = [stack.greedy(prompt, NEW) for prompt in prompts]
    while True:
        sequences = {str(i): [*prompts[i], *answers[i]] for i in range(len(prompts))}
        logits = peer_logits(model, sequences)
        chosen = [logits[str(i)][len(prompts[i]) - 1 : -1] for i in range(len(prompts))]
        wrong = [np.flatnonzero(rows.argmax(axis=1) != answers[i]) for i, rows in enumerate(chosen)]
        if not any(len(positions) for positions in wrong):
            scales = [float(np.abs(logits[str(i)]).max()) for i in range(len(prompts))]
            return answers, [clear_margin(rows, s).tolist() for rows, s in zip(chosen, scales, strict=True)]
        with LocalStack(model, ComputeMode.FP32) as stack:
            for i, positions in enumerate(wrong):
                if len(positions):
                    first = int(positions[0])
                    kept = [*answers[i][:first], int(chosen[i][first].argmax())]
                    answers[i] = kept + stack.greedy([*prompts[i], *kept], NEW - len(kept))


def main() -> int:
    model = build_demo_model(colibri_home(os.environ))
    prompts = prompt_ids(model)
    answers, clear = _peer_greedy(model, prompts)
    rows = [
        {"prompt": prompt, "ids": ids, "answer": answer, "clear": flags}
        for prompt, ids, answer, flags in zip(PROMPTS, prompts, answers, clear, strict=True)
    ]
    GOLDEN.write_text(json.dumps(rows) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
