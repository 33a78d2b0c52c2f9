"""Calls of the module of faults, in a process each."""

from __future__ import annotations

import os
import subprocess
import sys

BUILT = os.environ.get("SANITIZED_MODULES", "")
MODE = os.environ.get("SANITIZED", "")
_PRELUDE = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import _faults as faults
"""


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script knows `np` and `faults`; sys.argv[2:] are its arguments."""
    command = [sys.executable, "-c", _PRELUDE + script, f"{BUILT}/colibri/sanitize", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
