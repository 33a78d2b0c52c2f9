"""Options of one request, and of where it goes: to a model of this process, or to a server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, cast

from colibri.cli import options
from colibri.cli.parser import integer, number, plain_text
from colibri.cli.security_options import CHANNEL_OPTIONS, add_channel_security

if TYPE_CHECKING:
    from colibri.client import RequestOptions, Retry

#: Options whose name is that of a RequestOptions field and whose absence means the checkpoint's default.
_SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
_STOPPING = ("max_tokens", "min_tokens", "stop", "stop_ids", "ignore_eos")
_SHAPE = ("n", "echo", "logprobs", "priority")


def add_where(parser: argparse.ArgumentParser, workers: int = 2) -> None:
    """MODEL or --target, and what belongs to the one or to the other."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        # A type would be given the absence to convert, too.
        "model",
        nargs="?",
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help="Hugging Face folder of a Mixtral checkpoint, a pack of one (folder or URL), or `demo`: the demo model",
    )
    where.add_argument(
        "--target",
        metavar="ADDR",
        default=argparse.SUPPRESS,
        help="ask a running server instead: host:port or unix:/path",
    )
    parser.add_argument(
        "--retry-within",
        type=number(0, 86400),
        default=60.0,
        metavar="S",
        help="with --target: seconds that a lost server may take to come back; 0: nothing is asked again",
    )
    add_channel_security(parser)
    options.add_deployment(parser, workers=workers)


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """What is not given is taken from the checkpoint's generation_config.json."""
    unset = argparse.SUPPRESS
    parser.add_argument(
        "--temperature", type=number(0, 100), default=unset, metavar="T", help="0: always the likeliest token"
    )
    parser.add_argument(
        "--top-p", type=number(0, 1), default=unset, metavar="P", help="smallest set of this mass"
    )
    parser.add_argument("--top-k", type=integer(0, 1 << 31), default=unset, metavar="K", help="0: off")
    parser.add_argument(
        "--min-p",
        type=number(0, 1),
        default=unset,
        metavar="P",
        help="no token less likely than this share of the likeliest",
    )
    for name, low, what in (
        ("repetition", 0.0, "divides the logits of tokens of prompt and answer; 1: off"),
        ("presence", -2.0, "taken from the logits of the answer's tokens; 0: off"),
        ("frequency", -2.0, "the same, times their count; 0: off"),
    ):
        parser.add_argument(
            f"--{name}-penalty",
            type=number(low, 2.0 if low < 0 else 100.0),
            default=unset,
            metavar="X",
            help=what,
        )
    parser.add_argument(
        "--seed",
        type=integer(0, (1 << 64) - 1),
        default=unset,
        help="of the random draws (default: drawn and told)",
    )


def add_stopping(parser: argparse.ArgumentParser) -> None:
    unset = argparse.SUPPRESS
    parser.add_argument(
        "--max-tokens", type=integer(1, 1 << 26), default=unset, metavar="N", help="longest answer"
    )
    parser.add_argument(
        "--min-tokens", type=integer(0, 1 << 26), default=unset, metavar="N", help="nothing ends it before"
    )
    parser.add_argument(
        "--stop",
        type=plain_text,
        action="append",
        default=unset,
        metavar="TEXT",
        help="end before this text, which is not shown; may be given again",
    )
    parser.add_argument(
        "--stop-id",
        dest="stop_ids",
        type=integer(0, (1 << 32) - 1),
        action="append",
        default=unset,
        metavar="ID",
        help="end with this token; may be given again",
    )
    parser.add_argument(
        "--ignore-eos", action="store_true", help="the checkpoint's end-of-sequence tokens end nothing"
    )
    parser.add_argument(
        "--timeout",
        type=number(0.001, 1e6),
        default=600.0,
        metavar="S",
        help="seconds that an answer may take",
    )
    parser.add_argument(
        "--priority", type=integer(0, 1000), default=0, metavar="N", help="larger ones are admitted first"
    )


def add_shape(parser: argparse.ArgumentParser) -> None:
    """What comes back."""
    parser.add_argument("--n", type=integer(1, 16), default=1, metavar="N", help="answers to the prompt")
    parser.add_argument("--echo", action="store_true", help="the prompt comes first")
    parser.add_argument(
        "--logprobs",
        type=integer(0, 20),
        default=argparse.SUPPRESS,
        metavar="N",
        help="print each token's log-probability, and those of the N likeliest",
    )
    parser.add_argument("--receipts", action="store_true", help="print each token's receipt after the answer")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    add_record(parser)


def add_record(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--record",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="append request and answer to FILE, for `colibri replay`",
    )


def request_options(args: argparse.Namespace) -> RequestOptions:
    """What the options of this module ask for."""
    names = (*_SAMPLING, *_STOPPING, *_SHAPE)
    return cast("RequestOptions", {name: getattr(args, name) for name in names if hasattr(args, name)})


def retry(args: argparse.Namespace) -> Retry | None:
    from colibri.client import Retry

    # Time is the bound that was asked for: the count must not be reached before it.
    attempts = 1000 + int(10 * args.retry_within)
    return Retry(attempts=attempts, within_s=args.retry_within) if args.retry_within else None


def check_where(args: argparse.Namespace) -> None:
    """Raises ConfigError for a flag that the chosen place gives no meaning to."""
    from colibri.errors import ConfigError

    served = hasattr(args, "target")
    group = argparse.ArgumentParser()
    if served:
        options.add_deployment(group, workers=2)
    meaningless = (
        {action.dest for action in group._actions if action.dest != "help"}
        if served
        else {"retry_within", *CHANNEL_OPTIONS}
    )
    for setting in getattr(args, "option_sources", ()):
        if setting.dest in meaningless and setting.source == "flag":
            raise ConfigError(
                f"--{setting.key}",
                "no such option with --target: the server has its own"
                if served
                else "--target, which it is for",
                setting.value,
            )
