"""Answer one prompt with a model, on local workers, in this process, or on a running server."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from colibri.cli import request_options
from colibri.cli.parser import hidden_byte, plain_text

if TYPE_CHECKING:
    from colibri.client import PromptLike

#: Of a message's field; the model's vocabulary is judged where it is known.
_LARGEST_ID = (1 << 32) - 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    request_options.add_where(parser)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument(
        "--prompt",
        type=plain_text,
        default=argparse.SUPPRESS,
        metavar="TEXT",
        help="the text to continue; - reads it from stdin",
    )
    prompt.add_argument(
        "--prompt-ids",
        type=_ids,
        default=argparse.SUPPRESS,
        metavar="IDS",
        help="token ids instead, separated by commas, taken as they are",
    )
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is a user's message: apply the chat template"
    )
    parser.add_argument(
        "--system",
        type=plain_text,
        default=argparse.SUPPRESS,
        metavar="TEXT",
        help="with --chat: the system message before it",
    )
    request_options.add_sampling(parser)
    request_options.add_stopping(parser)
    request_options.add_shape(parser)


def run(args: argparse.Namespace) -> int:
    from colibri.cli.answer import answer, tell_phases
    from colibri.cli.sources import open_source
    from colibri.client.messages import to_request
    from colibri.deployment.phases import Phases, process_age_s

    prompt = _prompt(args)
    request = to_request(prompt, **request_options.request_options(args))
    phases = Phases(process_age_s())
    with open_source(args, phases) as source:
        answer(source, request, phases, args)
        tell_phases(phases, source)
    return 0


def _prompt(args: argparse.Namespace) -> PromptLike:
    from colibri.errors import ConfigError
    from colibri.generation import Chat, ChatMessage

    if hasattr(args, "system") and not args.chat:
        raise ConfigError("--system", "--chat with it", "no --chat")
    if hasattr(args, "prompt_ids"):
        if args.chat:
            raise ConfigError("--chat", "--prompt with it", "--prompt-ids")
        ids: list[int] = args.prompt_ids
        return ids
    text: str = _from_stdin() if args.prompt == "-" else args.prompt
    if not args.chat:
        return text
    system = [ChatMessage("system", args.system)] if hasattr(args, "system") else []
    return Chat((*system, ChatMessage("user", text)))


def _from_stdin() -> str:
    from colibri.errors import ConfigError

    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        got = f"byte {error.object[error.start]:02x} after {error.start} bytes"
        raise ConfigError("--prompt -", f"text in {error.encoding} on stdin", got) from None
    hidden = hidden_byte(text)
    if hidden is not None:
        raise ConfigError("--prompt -", "text in UTF-8 on stdin", hidden)
    return text


def _ids(text: str) -> list[int]:
    """An argparse type."""
    return [_id(part) for part in text.split(",")]


def _id(text: str) -> int:
    if not text.strip().isdecimal() or int(text) > _LARGEST_ID:
        raise argparse.ArgumentTypeError(f"expected token ids from 0, separated by commas, got {text!r}")
    return int(text)
