"""Measure prefill: prompt tokens per second, and where the time goes."""

from __future__ import annotations

import argparse
import json

from colibri.cli import bench_model
from colibri.cli.parser import integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    bench_model.add_arguments(parser)
    parser.add_argument(
        "--prompt-tokens", type=integer(1, 1 << 20), default=512, metavar="N", help="tokens of the prompt"
    )


def run(args: argparse.Namespace) -> int:
    from colibri.bench import model

    with bench_model.start(args) as deployment:
        result = model.measure_prefill(deployment, args.prompt_tokens, args.rounds)
        if args.json:
            shape = {"prompt_tokens": args.prompt_tokens, "prefill_chunk": args.prefill_chunk}
            print(json.dumps(model.describe(deployment) | shape | result.document()))
            return 0
        print(model.headline(deployment))
        print(
            f"prefill  {model.spread(result.tokens_s)} tokens/s, {args.rounds} rounds of "
            f"{args.prompt_tokens} tokens in steps of {args.prefill_chunk}"
        )
        print("\n".join(result.lines()))
    return 0
