"""Where a deployment keeps what operators decided, for the next start."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.address import UnixAddress, parse_address

if TYPE_CHECKING:
    from colibri.cluster.placing.kept.store import DesiredStore

_FOLDER = "state"
_LONGEST_NAME = 120


@dataclass(frozen=True, slots=True)
class StateOptions:
    """What is kept of operators' decisions: drained workers, their number, moves, the placement by load.

    store: where it is kept. None: nowhere.
    fresh: set aside what an earlier run kept.
    """

    store: DesiredStore | None = None
    fresh: bool = False


def usual_state_file(home: Path, model: Path | str, listen: str) -> Path | None:
    """Returns the file of a server's state, by its model and its address.

    home: Colibri's home folder.
    listen: the address that the server listens on. None is returned for port 0: the next start could not find the file.
    """
    address = parse_address(listen, "--listen")
    if not isinstance(address, UnixAddress) and address.port == 0:
        return None
    return home / _FOLDER / file_name(str(model), listen)


def file_name(model: str, listen: str) -> str:
    """Returns a readable name that differs for every other pair of model and address."""
    whole = f"{model} at {listen}"
    name = Path(model.rstrip("/")).name or "model"
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{listen}")[-_LONGEST_NAME:].strip("-.")
    return f"{readable}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}.json"
