"""An environment with torch, for tests that nothing else can do. The project itself never needs it."""

from __future__ import annotations

import subprocess
from functools import cache

import pytest

from benchmarks import peers


def torch_python() -> str:
    """Its interpreter. Skips the test, telling why, where there is none."""
    python, lack = _found()
    if lack:
        pytest.skip(lack)
    return python


@cache
def _found() -> tuple[str, str]:
    try:
        python = peers.python()
    except FileNotFoundError as error:
        return "", str(error)
    needs = "import torch, transformers, grpc, google.protobuf, numpy"
    found = subprocess.run([python, "-c", needs], capture_output=True, text=True, timeout=120, check=False)
    if found.returncode:
        return "", f"{python}: {found.stderr.strip().splitlines()[-1]}: run `make peers`"
    return python, ""
