"""Options about the desired state that outlives the server: where it is kept, and how it is forgotten."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from colibri.deployment.state import StateOptions, usual_state_file

#: Value of --state: nowhere.
NOWHERE = "none"


def add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="keeps what operators decided (drained workers, their number, moves, the placement by load) for the next "
        f"start; {NOWHERE}: nowhere (default: a file under $COLIBRI_HOME/state, named by model and --listen)",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="starts as the command line says; what was kept is set aside beside its file, as FILE.old",
    )


def state_options(args: argparse.Namespace) -> StateOptions:
    """What `add_state` read."""
    from colibri.cluster.placing.kept.store import FileStore

    path = state_file(args)
    return StateOptions(None if path is None else FileStore(path), args.fresh)


def state_file(args: argparse.Namespace) -> Path | None:
    """Returns the file of --state, else the usual one. None: nothing is kept."""
    from colibri.models.home import colibri_home

    given = getattr(args, "state", None)
    if given is not None:
        return None if given == NOWHERE else Path(given).absolute()
    return usual_state_file(colibri_home(os.environ), args.model, args.listen)
