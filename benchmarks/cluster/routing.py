"""Recorded routing of the demo model: which experts its gates chose, token by token, over texts of four kinds.

`python -m benchmarks.cluster.routing` records anew, from the texts of benchmarks/surface/corpus.json, in bf16 mode.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

FILE = Path(__file__).with_name("routing.npz")
KINDS = ("prose", "code", "numbers", "scripts")
TOKENS = 512


def recorded() -> Mapping[str, NDArray[np.uint8]]:
    """By kind of text: [layers, tokens, top k], the experts chosen."""
    with np.load(FILE, allow_pickle=False) as file:
        return {kind: file[kind] for kind in KINDS}


def counts(choices: NDArray[np.uint8], experts: int) -> NDArray[np.float64]:
    """[layers, tokens, top k] -> rows of each expert, [layers, experts]."""
    return np.stack([np.bincount(layer.ravel(), minlength=experts) for layer in choices]).astype(np.float64)


def kind_of(text: str) -> str:
    if sum(ord(character) > 0x24F for character in text) > len(text) / 4:
        return "scripts"
    if sum(character.isdigit() for character in text) > len(text) / 6:
        return "numbers"
    return "code" if re.search(r"[{};=<>]|\(\)|def |::", text) else "prose"


def record() -> None:
    """Prefill of each kind's texts, one after another, through the decoder as it is."""
    from benchmarks.core.local_stack import LocalStack
    from benchmarks.surface.corpus import corpus
    from colibri.kernels.api import ComputeMode
    from colibri.models.demo_model import build_demo_model
    from colibri.models.home import colibri_home
    from colibri.models.tokenizer import Tokenizer

    folder = build_demo_model(colibri_home(os.environ))
    stack = LocalStack(folder, ComputeMode.BF16)
    tokenizer = Tokenizer.load(folder, stack.config)
    texts: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for text in corpus():
        texts[kind_of(text)].append(text)
    tapped = _Tapped(stack.moe)
    stack.moe = tapped  # type: ignore[assignment]
    found = {}
    for kind in KINDS:
        tapped.chosen = [[] for _ in range(stack.config.layers)]
        ids = tokenizer.encode("\n".join(texts[kind]))[:TOKENS]
        stack.logits(ids)
        found[kind] = np.stack([np.concatenate(layer) for layer in tapped.chosen]).astype(np.uint8)
        print(f"{kind}: {len(ids)} tokens of {len(texts[kind])} texts")
    stack.close()
    np.savez_compressed(FILE, **found)  # type: ignore[arg-type]
    print(f"{FILE}: {FILE.stat().st_size} bytes")


class _Tapped:
    """A router that notes what its gate chooses."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.chosen: list[list[NDArray[np.uint16]]] = []

    def forward(self, layer: int, x: Any, *args: Any, **kwargs: Any) -> Any:
        self.chosen[layer].append(self._inner.gate(layer, x).experts)
        return self._inner.forward(layer, x, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


if __name__ == "__main__":
    record()
