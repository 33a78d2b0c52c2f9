"""One prompt through an engine of this process, the tokens printed as they come."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from typing import TYPE_CHECKING

from colibri.cli.phases import Phases

if TYPE_CHECKING:
    from colibri.cli.deployment import Deployment
    from colibri.coordinator.request import GenerationRequest


def build_request(
    deployment: Deployment, prompt: str, args: argparse.Namespace, *, chat: bool
) -> GenerationRequest:
    """The request that the options ask for. `chat`: the prompt is a user's message under the chat template.

    Raises InvalidInput where the prompt or an option does not fit the model.
    """
    from colibri.coordinator.validate import Draws, to_request
    from colibri.deadline import Deadline
    from colibri.v1 import generation_pb2 as pb

    message = pb.GenerateRequest()
    if chat:
        message.token_ids.ids.extend(deployment.chat_ids(prompt))
    else:
        message.text = prompt
    for name in ("temperature", "top_p", "top_k", "seed"):
        if hasattr(args, name):
            setattr(message.sampling, name, getattr(args, name))
    if hasattr(args, "max_tokens"):
        message.stopping.max_tokens = args.max_tokens
    draws = Draws(seed=lambda: secrets.randbits(64), request_id=lambda: "prompt")
    return to_request(message, deployment.limits, deployment.tokenizer, Deadline(), draws)


def answer(
    deployment: Deployment, request: GenerationRequest, phases: Phases, args: argparse.Namespace
) -> int:
    """Run it and print what `--receipts` and `--json` ask for. Returns the exit code."""
    from colibri.generation import Finished, Tokens

    stream = not args.json
    text = ""
    ids: list[int] = []
    receipts: list[int] = []
    finished: Finished | None = None
    for event in deployment.engine.submit(request).events():
        if isinstance(event, Tokens):
            phases.mark("first token")
            text += event.text
            ids += event.ids
            receipts += event.receipts
            if stream:
                print(event.text, end="", flush=True)
        elif isinstance(event, Finished):
            finished = event
    phases.mark("answered")
    if finished is None:
        raise RuntimeError("an answer ends with Finished or with an error")
    if args.json:
        document = {
            "text": text,
            "ids": ids,
            "receipts": [f"{receipt:016x}" for receipt in receipts],
            "finish_reason": finished.reason.name.lower(),
            "usage": {
                "prompt_tokens": finished.usage.prompt_tokens,
                "completion_tokens": finished.usage.completion_tokens,
            },
            "seed": finished.seed,
            "engine_numerics_id": finished.engine_numerics_id,
            "workers": deployment.worker_names,
            "phases_s": {name: round(at, 3) for name, at in phases.since_start().items()},
        }
        print(json.dumps(document), flush=True)
        return 0
    print(flush=True)
    if args.receipts:
        for token, receipt in zip(ids, receipts, strict=True):
            print(f"{receipt:016x}  {token:>8}  {deployment.spell(token)}")
        print(f"{finished.receipt:016x}  the answer, on {finished.engine_numerics_id}")
    return 0


def tell_phases(phases: Phases, deployment: Deployment) -> None:
    """The table of phases and the workers, on stderr."""
    for line in [*deployment.describe(), *phases.lines()]:
        print(line, file=sys.stderr)
