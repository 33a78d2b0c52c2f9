"""What the tests of `make sanitize` load are the sanitised modules, in child processes, too."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sanitize.modes import MODES
from tests.sanitize.planted import BUILT, MODE

pytestmark = pytest.mark.skipif(not BUILT, reason="needs a build of `make sanitize`")
MODULES = ("colibri.kernels._native", "colibri.transport._shared_ring", "colibri.wire._codec")


@pytest.mark.parametrize("name", MODULES)
def test_the_modules_under_test_are_the_sanitised_ones(name: str) -> None:
    (marker,) = (mode.marker for mode in MODES if mode.name == MODE)
    module = importlib.import_module(name)
    assert module.__file__ is not None
    assert Path(module.__file__).is_relative_to(BUILT)
    child = [sys.executable, "-c", f"import {name} as m; print(m.__file__)"]
    assert subprocess.check_output(child, text=True).strip() == module.__file__
    assert marker in Path(module.__file__).read_bytes()
