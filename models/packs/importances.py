"""Keep importances beside an unfinished pack: made once, complete or absent, read again by the process that resumes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colibri.models.packs.manifest import Calibration
from colibri.models.packs.weights import Importance

Key = tuple[int, int]
"""(layer, expert)"""

_ABOUT = "about"
_PARTS = ("inputs", "hidden")


def kept_importances(
    path: Path, run: Callable[[], tuple[Calibration, Mapping[Key, Importance]]]
) -> tuple[Calibration, dict[Key, Importance]]:
    """Returns what the file `path` (NumPy's npz) holds. If there is no file, returns what `run` gives and writes that
    file.
    """
    if not path.exists():
        about, importances = run()
        arrays: dict[str, NDArray[np.generic]] = {
            _ABOUT: np.frombuffer(json.dumps(asdict(about)).encode(), dtype=np.uint8)
        }
        for (layer, expert), parts in importances.items():
            for name, part in zip(_PARTS, parts, strict=True):
                if part is not None:
                    arrays[f"{layer}.{expert}.{name}"] = part
        temporary = path.with_suffix(".part.npz")
        with open(temporary, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    with np.load(path, allow_pickle=False) as held:
        about = Calibration(**json.loads(held[_ABOUT].tobytes()))
        keys = {tuple(map(int, name.split(".")[:2])) for name in held.files if name != _ABOUT}
        found: dict[Key, Importance] = {}
        for layer, expert in keys:
            inputs, hidden = (
                held[name] if (name := f"{layer}.{expert}.{part}") in held.files else None for part in _PARTS
            )
            found[layer, expert] = (inputs, hidden)
    return about, found
