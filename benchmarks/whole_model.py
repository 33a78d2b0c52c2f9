"""`python -m benchmarks.whole_model MODEL [--workers N] [--link KIND] [--rounds N] [--json]`: tokens/s, and why.

Prefill of 512 tokens, decode of 64 after a prompt of 32, medians with spread, and the split of a decode step's time by
phase. MODEL: a folder, or `demo`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from pathlib import Path

import numpy as np

from benchmarks.core.speed import Ours, spread, transformers
from colibri.models.demo_model import build_demo_model, colibri_home

PREFILL, PROMPT, NEW = 512, 32, 64
PHASES = ("norm", "qkv", "attention", "o_proj", "moe", "head", "sample", "other")


def against_transformers(model: Path, workers: int, link: str, rounds: int) -> int:
    """Paired rounds, the order reversed every second one; prints medians with spread and the median paired ratio."""
    speeds: list[list[tuple[float, float]]] = [[], []]
    with Ours(model, workers, link=link) as ours, transformers(model) as theirs:
        vocab = ours.deployment.checkpoint.config.vocab
        ids = np.random.Generator(np.random.SFC64(1)).integers(3, vocab, PREFILL).tolist()
        for arm in (ours, theirs):
            arm.run(ids, 8)
        for index in range(rounds):
            arms = [(ours, speeds[0]), (theirs, speeds[1])]
            for arm, into in arms if index % 2 == 0 else arms[::-1]:
                into.append((PREFILL / arm.run(ids, 0).prefill_s, arm.run(ids[:PROMPT], NEW).decode_tokens_s))
    for column, name in enumerate(("prefill", "decode")):
        mine, peer = ([speed[column] for speed in arm] for arm in speeds)
        ratio = statistics.median(a / b for a, b in zip(mine, peer, strict=True))
        print(f"{name}: {spread(mine)} tokens/s, transformers bf16 {spread(peer)}: {ratio:.2f}x")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.whole_model", description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--link", default="auto")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer", action="store_true", help="alternate with transformers bf16 instead")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    model = build_demo_model(colibri_home(os.environ)) if args.model == "demo" else Path(args.model)
    if args.peer:
        return against_transformers(model, args.workers, args.link, args.rounds)
    prefill: list[float] = []
    decode: list[float] = []
    with Ours(model, args.workers, link=args.link) as ours:
        config = ours.deployment.checkpoint.config
        ids = np.random.Generator(np.random.SFC64(1)).integers(3, config.vocab, PREFILL).tolist()
        ours.run(ids, 8)
        for _ in range(args.rounds):
            prefill.append(PREFILL / ours.run(ids, 0).prefill_s)
        engine, router = ours.deployment.engine, ours.deployment.router
        before, routed, exchanged = engine.stats(), router.times(), router.exchange_times()
        for _ in range(args.rounds):
            decode.append(ours.run(ids[:PROMPT], NEW).decode_tokens_s)
        after, routed_after, exchanged_after = engine.stats(), router.times(), router.exchange_times()
    steps = after.steps - before.steps
    split = {n: (getattr(after.times, n) - getattr(before.times, n)) / steps * 1e3 for n in PHASES}
    for name in ("gate_s", "plan_s", "exchange_s", "merge_s"):
        split[f"moe: {name[:-2]}"] = (getattr(routed_after, name) - getattr(routed, name)) / steps * 1e3
    if exchanged is not None and exchanged_after is not None:
        for name in ("worker_compute_s", "worker_queue_s"):
            per_step = (getattr(exchanged_after, name) - getattr(exchanged, name)) / steps * 1e3
            split[f"moe: {name[:-2]}, all workers"] = per_step
    if args.json:
        print(json.dumps({"prefill_tokens_s": prefill, "decode_tokens_s": decode, "step_ms": split}))
        return 0
    print(f"{model.name}, {args.workers} workers, link {args.link}, {os.cpu_count()} CPUs")
    print(f"prefill {PREFILL}: {spread(prefill)} tokens/s; decode: {spread(decode)} tokens/s")
    total = sum(split[name] for name in PHASES)
    print(f"a step of decode: {total:.2f} ms (median token {1e3 / statistics.median(decode):.2f} ms), of it")
    for name, value in split.items():
        print(f"  {name:<32} {value:7.3f} ms {100 * value / total:5.1f} %")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
