"""Prepare the demo model, start a local cluster and answer a prompt."""

from __future__ import annotations

import argparse

from colibri.cli import options, request_options
from colibri.cli.model import DEMO, locate_model

PROMPT = "What is the capital of France? Answer in one sentence."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", default=PROMPT, help="a user's message, put under the chat template")
    options.add_deployment(parser, workers=2, share=True)
    request_options.add_sampling(parser)
    request_options.add_stopping(parser)
    request_options.add_shape(parser)


def run(args: argparse.Namespace) -> int:
    from colibri.cli.answer import answer, tell_phases
    from colibri.cli.sources import local_source
    from colibri.client.messages import to_request
    from colibri.deployment.phases import Phases, process_age_s
    from colibri.generation import Chat, ChatMessage

    request = to_request(Chat((ChatMessage("user", args.prompt),)), **request_options.request_options(args))
    phases = Phases(process_age_s())
    phases.mark("process start")
    args.model = DEMO
    locate_model(args)
    phases.mark("demo model")
    with local_source(args, args.model, phases) as source:
        answer(source, request, phases, args)
        tell_phases(phases, source)
    return 0
