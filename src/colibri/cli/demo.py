"""Prepare the demo model, start a local cluster and answer a prompt."""

from __future__ import annotations

import argparse
import os

from colibri.cli import options

PROMPT = "What is the capital of France? Answer in one sentence."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", default=PROMPT, help="a user's message, put under the chat template")
    options.add_deployment(parser, workers=2)
    options.add_sampling(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    from colibri.cli.answer import answer, build_request, tell_phases
    from colibri.cli.assemble import assemble
    from colibri.cli.phases import Phases, process_age_s
    from colibri.cli.progress import Loading
    from colibri.models.demo_model import build_demo_model, colibri_home

    phases = Phases(process_age_s())
    phases.mark("process start")
    with Loading() as loading:
        model = build_demo_model(
            colibri_home(os.environ),
            lambda stage, done, total: loading.update(f"demo model: {stage}", done, total),
        )
        phases.mark("demo model")
        deployment = assemble(options.deployment_options(args, model), phases, loading)
    with deployment:
        code = answer(deployment, build_request(deployment, args.prompt, args, chat=True), phases, args)
        tell_phases(phases, deployment)
    return code
