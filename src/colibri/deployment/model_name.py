"""Models that have a name: `demo` stands for the demo model wherever a model is asked for."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from colibri.deployment.reports import Progress, no_progress

DEMO = "demo"


def find_model(
    model: Path | str, progress: Progress = no_progress, environ: MutableMapping[str, str] = os.environ
) -> Path | str:
    """Returns the location of a model: a URL as it is, a path, or the folder of the demo model.

    model: a path, a URL, or "demo" where no folder here has that name. The demo model is built if it is not there.
    progress: told of the stages of that.
    environ: says where Colibri's home is.

    Raises CheckpointError or DeadlineExpired where the demo model cannot be built.
    """
    if isinstance(model, str) and "://" in model:
        return model
    path = Path(model)
    if path != Path(DEMO) or path.exists():
        return path
    from colibri.models.demo_model import build_demo_model
    from colibri.models.home import colibri_home

    return build_demo_model(
        colibri_home(environ), lambda stage, done, total: progress(f"demo model: {stage}", done, total)
    )
