"""The model that a verb was given by name."""

from __future__ import annotations

import argparse

#: As colibri.deployment.model_name has it.
DEMO = "demo"


def locate_model(args: argparse.Namespace) -> None:
    """Puts the folder of the demo model in place of the name `demo`, and builds the model where it is not there.

    args: parsed; a verb without `model` is left as it is.
    """
    name = getattr(args, "model", None)
    if str(name) != DEMO:
        return  # without the imports below
    from colibri.cli.progress import Loading
    from colibri.deployment.model_name import find_model

    with Loading() as loading:
        found = find_model(DEMO, loading.update)
    args.model = str(found) if isinstance(name, str) else found
