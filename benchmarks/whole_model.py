"""`python -m benchmarks.whole_model MODEL [--workers N] [--link KIND] [--rounds N]`: whole models against a peer.

Prefill of 512 tokens and decode of 64 after a prompt of 32, in rounds that alternate with transformers bf16; medians
with spread, and the median of the paired ratios. `colibri bench` measures Colibri alone, and where its time goes.
MODEL: a folder, or `demo`.
"""

from __future__ import annotations

import argparse
import os
import statistics
from pathlib import Path

import numpy as np

from benchmarks.core.speed import Ours, Transformers, spread, transformers
from colibri.models.demo_model import build_demo_model
from colibri.models.home import colibri_home

PREFILL, PROMPT, NEW = 512, 32, 64


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.whole_model", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--link", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    model = build_demo_model(colibri_home(os.environ)) if args.model == "demo" else Path(args.model)
    speeds: list[list[tuple[float, float]]] = [[], []]
    with Ours(model, args.workers, link=args.link) as ours, transformers(model) as theirs:
        vocab = ours.deployment.model.config.vocab
        ids = np.random.Generator(np.random.SFC64(1)).integers(3, vocab, PREFILL).tolist()
        ours.run(ids, 8)
        theirs.run(ids, 8)
        for index in range(args.rounds):
            arms: list[tuple[Ours | Transformers, list[tuple[float, float]]]]
            arms = [(ours, speeds[0]), (theirs, speeds[1])]
            for arm, into in arms if index % 2 == 0 else arms[::-1]:
                into.append((PREFILL / arm.run(ids, 0).prefill_s, arm.run(ids[:PROMPT], NEW).decode_tokens_s))
    for column, name in enumerate(("prefill", "decode")):
        mine, peer = ([speed[column] for speed in arm] for arm in speeds)
        ratio = statistics.median(a / b for a, b in zip(mine, peer, strict=True))
        print(f"{name}: {spread(mine)} tokens/s, transformers bf16 {spread(peer)}: {ratio:.2f}x")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
