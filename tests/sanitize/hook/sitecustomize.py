"""Loaded by every Python process that `make sanitize` starts: native modules come from the build with sanitisers.

`SANITIZED_MODULES` is the folder of that build; a module that is missing there is an error, not the plain one.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import ModuleType

MODULES = ("colibri.kernels._native", "colibri.transport._shared_ring", "colibri.wire._codec")


class SanitizedModules(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in MODULES:
            return None
        folder = Path(os.environ["SANITIZED_MODULES"], *name.split(".")[:-1])
        (file,) = folder.glob(f"{name.rpartition('.')[2]}.*.so")
        return importlib.util.spec_from_file_location(name, file)


sys.meta_path.insert(0, SanitizedModules())
