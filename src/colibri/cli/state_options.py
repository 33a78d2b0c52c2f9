"""Options about the desired state that outlives the server: where it is kept, and how it is forgotten."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colibri.cluster.desired_store import DesiredStore

#: Value of --state: nowhere.
NOWHERE = "none"
_FOLDER = "state"
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class StateOptions:
    """store: None: nothing is kept. fresh: what was kept is set aside."""

    store: DesiredStore | None = None
    fresh: bool = False


def add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--state",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="keeps what operators decided (drained workers, their number, moves, the placement by load) for the next "
        f"start; {NOWHERE}: nowhere (default: a file under $COLIBRI_HOME/{_FOLDER}, named by model and --listen)",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="starts as the command line says; what was kept is set aside beside its file, as FILE.old",
    )


def state_options(args: argparse.Namespace) -> StateOptions:
    """What `add_state` read."""
    from colibri.cluster.desired_store import FileStore

    path = state_file(args)
    return StateOptions(None if path is None else FileStore(path), args.fresh)


def state_file(args: argparse.Namespace) -> Path | None:
    """None: nothing is kept. So it is, without --state, where the server listens on a port that nobody knows before:
    the next start could not find the file."""
    from colibri.models.home import colibri_home
    from colibri.transport.address import UnixAddress, parse_address

    given = getattr(args, "state", None)
    if given is not None:
        return None if given == NOWHERE else Path(given).absolute()
    address = parse_address(args.listen, "--listen")
    if not isinstance(address, UnixAddress) and address.port == 0:
        return None
    return colibri_home(os.environ) / _FOLDER / file_name(str(args.model), args.listen)


def file_name(model: str, listen: str) -> str:
    """Readable, and other for every other pair of model and address."""
    whole = f"{model} at {listen}"
    name = Path(model.rstrip("/")).name or "model"
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{listen}")[-_LONGEST_NAME:].strip("-.")
    return f"{readable}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}.json"
