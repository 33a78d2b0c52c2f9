"""Answer one prompt with a model, on local workers or in this process."""

from __future__ import annotations

import argparse
import sys

from colibri.cli import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("--prompt", required=True, help="the text to continue; - reads it from stdin")
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is a user's message: apply the chat template"
    )
    options.add_deployment(parser, workers=2)
    options.add_sampling(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    from colibri.cli.answer import answer, build_request, tell_phases
    from colibri.cli.assemble import assemble
    from colibri.cli.phases import Phases, process_age_s
    from colibri.cli.progress import Loading

    phases = Phases(process_age_s())
    phases.mark("process start")
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    with Loading() as loading:
        deployment = assemble(options.deployment_options(args, args.model), phases, loading)
    with deployment:
        code = answer(deployment, build_request(deployment, prompt, args, chat=args.chat), phases, args)
        tell_phases(phases, deployment)
    return code
