"""One request through a source, its answers printed as they come or as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from typing import TYPE_CHECKING

from colibri.cli.terminal import shown
from colibri.deployment.phases import Phases

if TYPE_CHECKING:
    from colibri.cli.sources import Source
    from colibri.client import Answer, Answers
    from colibri.generation import TokenLogprobs
    from colibri.v1 import generation_pb2 as pb


def answer(source: Source, request: pb.GenerateRequest, phases: Phases, args: argparse.Namespace) -> None:
    """Asks, and prints what the options of request_options.add_shape want. Raises what ends the answer."""
    from colibri.client import Answers
    from colibri.generation import Prompt, Tokens

    # Several answers come interleaved: they are printed when all are complete.
    stream = not args.json and args.n == 1
    answers = Answers()
    with contextlib.closing(source.start(request, args.timeout)) as events:
        for event in events:
            answers.take(event)
            if isinstance(event, Tokens):
                phases.mark("first token")
            if stream and isinstance(event, (Prompt, Tokens)):
                print(shown(event.text), end="", flush=True)
    phases.mark("answered")
    if hasattr(args, "record"):
        keep(source, request, answers, args)
    if args.json:
        print(json.dumps(_document(source, answers, phases, args)), flush=True)
        return
    if stream:
        print(flush=True)
    for each in answers.all():
        if not stream:
            prompt = answers.prompt.text if answers.prompt else ""
            print(shown(f"--- {each.choice}\n{prompt}{each.text}"), flush=True)
        if args.receipts or hasattr(args, "logprobs"):
            _print_tokens(source, each, args)


def keep(source: Source, request: pb.GenerateRequest, answers: Answers, args: argparse.Namespace) -> None:
    """Appends to the file of --record what can be asked for again. Raises ConfigError when it cannot be written."""
    from colibri.client.recording import Record, append
    from colibri.errors import ConfigError

    record = Record.of(request, answers.all(), source.model_hash)
    if record is None:
        return
    try:
        append(args.record, record)
    except OSError as error:
        raise ConfigError("--record", "a file that can be written", error) from error


def tell_phases(phases: Phases, source: Source) -> None:
    """The table of phases and the workers, on stderr."""
    for line in [*source.about(), *phases.lines()]:
        print(line, file=sys.stderr)


def _document(
    source: Source, answers: Answers, phases: Phases, args: argparse.Namespace
) -> dict[str, object]:
    choices = [_choice(each) for each in answers.all()]
    document = choices[0] | {
        "workers": source.workers,
        "phases_s": {name: round(at, 3) for name, at in phases.since_start().items()},
    }
    if answers.prompt is not None:
        document["prompt"] = {
            "text": answers.prompt.text,
            "ids": answers.prompt.ids,
            "logprobs": [None if each is None else _logprobs(each) for each in answers.prompt.logprobs],
        }
    return document if args.n == 1 else document | {"choices": choices}


def _choice(each: Answer) -> dict[str, object]:
    finished = each.finished
    if finished is None:
        raise RuntimeError("an answer ends with Finished or with an error")
    document: dict[str, object] = {
        "text": each.text,
        "ids": each.ids,
        "receipts": [f"{receipt:016x}" for receipt in each.receipts],
        "finish_reason": finished.reason.name.lower(),
        "stop": finished.stop_id if finished.stop_string is None else finished.stop_string,
        "usage": {
            "prompt_tokens": finished.usage.prompt_tokens,
            "completion_tokens": finished.usage.completion_tokens,
        },
        "seed": finished.seed,
        "engine_numerics_id": finished.engine_numerics_id,
    }
    return document | ({"logprobs": [_logprobs(each) for each in each.logprobs]} if each.logprobs else {})


def _logprobs(each: TokenLogprobs) -> dict[str, object]:
    return {"logprob": each.logprob, "top": [{"id": token, "logprob": value} for token, value in each.top]}


def _print_tokens(source: Source, each: Answer, args: argparse.Namespace) -> None:
    spelled = source.spell(each.ids)
    for at, token in enumerate(each.ids):
        cells = [f"{each.receipts[at]:016x}"] if args.receipts else []
        if each.logprobs:
            cells.append(f"{each.logprobs[at].logprob:>9.4f}")
        print(shown("  ".join([*cells, f"{token:>8}", spelled[at]])))
        if each.logprobs and each.logprobs[at].top:
            tops = each.logprobs[at].top
            names = source.spell([other for other, _ in tops])
            named = (f"{n or t} {p:.4f}" for (t, p), n in zip(tops, names, strict=True))
            print(shown("    " + ", ".join(named)))
    if args.receipts and each.finished is not None:
        print(f"{each.finished.receipt:016x}  the answer, on {each.finished.engine_numerics_id}")
