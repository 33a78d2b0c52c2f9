"""Options of a load. What they mean is in `load_plan`, so that help stays quick."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from colibri.cli.parser import integer, number
from colibri.cli.security_options import add_channel_security

#: Values of colibri.bench.load.targets.openai_http.PromptForm.
FORMS = ("ids", "text", "chat")
DEFAULT_REQUESTS = 100
DEFAULT_INPUT, DEFAULT_OUTPUT = "64", "32"
DEFAULT_TARGET = "127.0.0.1:50051"


def add_target(parser: argparse.ArgumentParser) -> None:
    unset = argparse.SUPPRESS
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--target", default=DEFAULT_TARGET, metavar="ADDR", help="colibri server: host:port or unix:/path"
    )
    where.add_argument(
        "--openai",
        default=unset,
        metavar="URL",
        help="measure this OpenAI-compatible server instead, as http://host:8000/v1 (key: $OPENAI_API_KEY)",
    )
    add_channel_security(parser)
    parser.add_argument(
        "--openai-model",
        default=unset,
        metavar="NAME",
        help="the model to ask such a server for (default: default)",
    )
    parser.add_argument(
        "--openai-form",
        choices=FORMS,
        default=unset,
        help="how prompts go to such a server (default: ids)",
    )
    parser.add_argument(
        "--tokenizer",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="folder with the tokenizer.json of a model behind --openai",
    )
    parser.add_argument(
        "--vocab",
        type=integer(1, 1 << 24),
        default=argparse.SUPPRESS,
        metavar="N",
        help="vocabulary of a model behind --openai, where no --tokenizer tells",
    )


def add_arrivals(parser: argparse.ArgumentParser) -> None:
    how = parser.add_mutually_exclusive_group(required=True)
    unset = argparse.SUPPRESS
    how.add_argument(
        "--rate",
        type=number(0, math.inf),
        default=unset,
        metavar="R",
        help="open loop: R requests per second on average, inf: all at once",
    )
    how.add_argument(
        "--users",
        type=integer(1, 4096),
        default=unset,
        metavar="N",
        help="closed loop: N users, one after another",
    )
    how.add_argument(
        "--trace",
        type=Path,
        default=unset,
        metavar="FILE",
        help="open loop: times and lengths of this file of JSON lines (timestamp in ms, input_length, "
        "output_length)",
    )
    parser.add_argument(
        "--burstiness",
        type=number(1e-3, 1e6),
        default=unset,
        metavar="B",
        help="with --rate, shape of the gamma distribution of gaps: 1 Poisson (default), below 1 bursts",
    )
    parser.add_argument(
        "--trace-speed",
        type=number(1e-6, 1e6),
        default=unset,
        metavar="X",
        help="with --trace: X times as fast (default: 1)",
    )
    parser.add_argument(
        "--think",
        type=number(0, 1e6),
        default=unset,
        metavar="S",
        help="with --users: pause after each answer (default: 0)",
    )
    parser.add_argument(
        "--requests",
        type=integer(1, 10_000_000),
        default=unset,
        metavar="N",
        help=f"end after N requests (default: the whole trace, else {DEFAULT_REQUESTS} without --duration)",
    )
    parser.add_argument(
        "--duration", type=number(1e-3, 1e7), default=unset, metavar="S", help="send nothing after S seconds"
    )
    parser.add_argument(
        "--in-flight",
        type=integer(1, 4096),
        default=128,
        metavar="N",
        help="declared bound of requests at once; an open loop that reaches it is invalid",
    )
    parser.add_argument(
        "--timeout", type=number(1e-3, 1e7), default=120.0, metavar="S", help="seconds for one answer"
    )
    parser.add_argument(
        "--warmup", type=integer(0, 100_000), default=2, metavar="N", help="requests before the measured ones"
    )


def add_requests(parser: argparse.ArgumentParser) -> None:
    lengths = "N, uniform:LOW:HIGH or lognormal:MEDIAN:SIGMA:MAX tokens"
    for name, what, default in (("input", "prompt", DEFAULT_INPUT), ("output", "answer", DEFAULT_OUTPUT)):
        parser.add_argument(
            f"--{name}-len",
            default=argparse.SUPPRESS,
            metavar="LEN",
            help=f"{what}: {lengths} (default: {default}, or as the trace says)",
        )
    parser.add_argument(
        "--text",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="cut prompts out of this text (default: random tokens)",
    )
    parser.add_argument(
        "--distinct",
        type=integer(1, 1_000_000),
        default=argparse.SUPPRESS,
        metavar="N",
        help="repeat the same N requests (default: all differ)",
    )
    parser.add_argument("--seed", type=integer(0, (1 << 63) - 1), default=0, help="of arrivals and requests")
    parser.add_argument(
        "--temperature", type=number(0, 100), default=0.0, metavar="T", help="0: always the likeliest token"
    )
    parser.add_argument(
        "--top-p", type=number(0, 1), default=1.0, metavar="P", help="smallest set of this mass"
    )
    parser.add_argument("--top-k", type=integer(0, 1 << 31), default=0, metavar="K", help="0: off")
    parser.add_argument(
        "--stop-at-eos",
        action="store_true",
        help="let end-of-sequence tokens end answers (default: they go on to their full length)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue an answer that fails with a retryable error from its tokens; the target must be colibri's",
    )
