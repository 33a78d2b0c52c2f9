"""Agreement with transformers in fp32: logits of every position and the greedy tokens they choose."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.core.local_stack import LocalStack
from benchmarks.peers import python, script
from benchmarks.table import Outcome
from colibri.kernels.api import F32, ComputeMode
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.models.tensor_names import ExpertLayout

BOUND = 1e-4
GREEDY = 64

TINY = RandomMixtral(
    hidden=64,
    ffn=96,
    layers=3,
    experts=4,
    top_k=2,
    heads=4,
    kv_heads=2,
    vocab=512,
    max_positions=4096,
    dtype="fp32",
)
#: What each variant turns on, and the length of its prompt.
VARIANTS: Mapping[str, tuple[RandomMixtral, int]] = {
    "plain": (TINY, 40),
    "head size 32, one KV head": (replace(TINY, heads=8, kv_heads=1, head_dim=32), 70),
    "head size 48, no sharing": (replace(TINY, heads=3, kv_heads=3, head_dim=48, hidden=80), 33),
    "sliding window 16": (replace(TINY, sliding_window=16), 100),
    "tied, fused experts": (replace(TINY, tied=True, layout=ExpertLayout.FUSED), 40),
    "8 experts, top-1": (replace(TINY, experts=8, top_k=1), 40),
    "16 experts, top-4": (replace(TINY, experts=16, top_k=4), 64),
    "bf16 weights, odd ffn": (replace(TINY, dtype="bf16", ffn=97), 40),
    "fp16 weights": (replace(TINY, dtype="fp16"), 40),
    "3,000 tokens": (TINY, 3000),
}


@dataclass(frozen=True, slots=True)
class Agreement:
    """error: max abs difference / max abs logit. Tokens count where the peer's top-2 margin is clear: above ten
    bounds."""

    error: float
    tokens_compared: int
    tokens_equal: int
    tokens_close: int

    @property
    def met(self) -> bool:
        return self.error <= BOUND and self.tokens_equal == self.tokens_compared


def peer_logits(model: Path, sequences: Mapping[str, Sequence[int]]) -> dict[str, F32]:
    """fp32 logits [tokens, vocab] of each sequence by transformers. Raises FileNotFoundError without
    `make peers`."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.npz"), Path(folder, "out.npz")
        with source.open("wb") as file:
            arrays: dict[str, Any] = {name: np.array(ids, np.int64) for name, ids in sequences.items()}
            np.savez(file, **arrays)
        command = [python(), script("hf_logits.py"), str(model), str(source), str(target)]
        subprocess.run(command, check=True, capture_output=True, timeout=900)
        with np.load(target, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}


def compare(ours: F32, theirs: F32, chosen: Sequence[int], start: int) -> Agreement:
    """ours, theirs [tokens, vocab]; chosen: the tokens we took after positions start, start + 1, ..."""
    scale = float(np.abs(theirs).max())
    error = float(np.abs(ours - theirs).max()) / scale
    rows = theirs[start : start + len(chosen)]
    top = np.sort(rows, axis=1)
    clear = (top[:, -1] - top[:, -2]) > 10 * BOUND * scale
    equal = rows.argmax(axis=1) == np.array(chosen)
    return Agreement(error, int(clear.sum()), int((equal & clear).sum()), int((~clear).sum()))


def tiny_agreement(params: RandomMixtral, prompt_tokens: int, folder: Path) -> Agreement:
    """A random model's prompt and our own greedy answer to it, judged by transformers in one forward pass."""
    model = random_mixtral(folder, params)
    prompt = (
        np.random.Generator(np.random.SFC64(prompt_tokens)).integers(3, params.vocab, prompt_tokens).tolist()
    )
    with LocalStack(model, ComputeMode.FP32) as stack:
        answer = stack.greedy(prompt, GREEDY)
        ours = stack.logits(prompt + answer)
    theirs = peer_logits(model, {"sequence": prompt + answer})["sequence"]
    return compare(ours, theirs, answer, prompt_tokens - 1)


def measure_tiny() -> Outcome:
    found: dict[str, Agreement] = {}
    for name, (params, prompt_tokens) in VARIANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = tiny_agreement(params, prompt_tokens, Path(folder, "model"))
    worst = max(found, key=lambda name: found[name].error)
    equal, compared = (
        sum(getattr(a, f) for a in found.values()) for f in ("tokens_equal", "tokens_compared")
    )
    return Outcome(
        f"worst {found[worst].error:.1e} ({worst}); {equal} of {compared} tokens equal, {len(found)} models",
        all(a.met for a in found.values()),
        "transformers fp32",
        {name: repr(agreement) for name, agreement in found.items()},
    )
