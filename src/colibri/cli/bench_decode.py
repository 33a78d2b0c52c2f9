"""Measure decode: tokens per second of each sequence, and where a step's time goes."""

from __future__ import annotations

import argparse
import json

from colibri.cli import bench_model
from colibri.cli.parser import integer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    bench_model.add_arguments(parser)
    parser.add_argument(
        "--prompt-tokens", type=integer(1, 1 << 20), default=32, metavar="N", help="tokens of each prompt"
    )
    parser.add_argument(
        "--new-tokens",
        type=integer(1, 1 << 20),
        default=64,
        metavar="N",
        help="tokens after the first of each",
    )
    parser.add_argument(
        "--batch", type=integer(1, 256), default=1, metavar="N", help="sequences that decode together"
    )


def run(args: argparse.Namespace) -> int:
    from colibri.bench import model

    args.max_running = max(args.batch, 16)
    with bench_model.start(args) as deployment:
        result = model.measure_decode(
            deployment, args.prompt_tokens, args.new_tokens, args.batch, args.rounds
        )
        if args.json:
            shape = {"prompt_tokens": args.prompt_tokens, "new_tokens": args.new_tokens, "batch": args.batch}
            print(json.dumps(model.describe(deployment) | shape | result.document()))
            return 0
        print(model.headline(deployment))
        sequences = f"{args.batch} sequence{'' if args.batch == 1 else 's'}"
        print(
            f"decode   {model.spread(result.tokens_s)} tokens/s, {args.rounds} rounds, {sequences} of "
            f"{args.new_tokens} tokens after a prompt of {args.prompt_tokens}"
        )
        print("\n".join(result.lines()))
    return 0
