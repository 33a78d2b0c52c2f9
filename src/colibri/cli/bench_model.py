"""Options that `bench decode` and `bench prefill` share, and the deployment that they describe."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
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
    """The deployment that the options describe; the demo model is made first where it is asked for."""
    from colibri.cli.assembled import assembled
    from colibri.cli.progress import Loading
    from colibri.deployment.phases import Phases
    from colibri.models.demo_model import build_demo_model
    from colibri.models.home import colibri_home

    with Loading() as loading:
        model = args.model
        if model == Path("demo") and not model.exists():
            model = build_demo_model(
                colibri_home(os.environ),
                lambda stage, done, total: loading.update(f"demo model: {stage}", done, total),
            )
    return assembled(options.deployment_options(args, model), Phases())
