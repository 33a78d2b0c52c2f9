"""Options that `bench decode` and `bench prefill` share, and the deployment that they describe."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from colibri.cli import options
from colibri.cli.parser import integer, model_place

if TYPE_CHECKING:
    from colibri.deployment.running import Deployment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=model_place,
        metavar="MODEL",
        help="Hugging Face folder of a Mixtral checkpoint, a pack of one (folder or URL), or `demo`: the demo model",
    )
    parser.add_argument(
        "--rounds",
        type=integer(1, 10000),
        default=5,
        metavar="N",
        help="measured rounds, after one to warm up",
    )
    options.add_deployment(parser, workers=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def start(args: argparse.Namespace) -> Deployment:
    """Starts the deployment that the options describe."""
    from colibri.cli.assembled import assembled
    from colibri.deployment.phases import Phases

    return assembled(options.deployment_options(args, args.model), Phases())
