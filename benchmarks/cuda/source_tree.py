"""`colibri.kernels` from the source tree, where nothing is installed: the folders' names differ from the packages'."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def use_source_tree() -> None:
    """Makes `colibri.kernels` importable, unless `colibri` is installed. Only the kernels: nothing else is needed of
    machines without built protos."""
    if "colibri" in sys.modules or importlib.util.find_spec("colibri") is not None:
        return
    for name, folder in (("colibri", ROOT / "src" / "colibri"), ("colibri.kernels", ROOT / "kernels")):
        module = types.ModuleType(name)
        module.__path__ = [str(folder)]
        sys.modules[name] = module
    sys.modules["colibri"].kernels = sys.modules["colibri.kernels"]  # type: ignore[attr-defined]
