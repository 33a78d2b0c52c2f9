"""The script for GPU machines, as far as it goes without one: its checks on an emulated device, its lines, its start
from the source tree with nothing installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cuda import checks
from benchmarks.cuda.gpu_check import Results, quick
from benchmarks.cuda.source_tree import ROOT
from colibri.kernels.cuda.backend import CudaBackend
from tests.support.cuda.emulated import EmulatedDevice


@pytest.mark.slow
def test_every_check_is_right(tmp_path: Path) -> None:
    results = Results(tmp_path / "lines.json")
    backend = CudaBackend(EmulatedDevice(90), weight_bytes=1 << 28)
    ticks = iter(np.arange(1000) * 1.0)
    # A clock that lets one round begin, each check reading it three times at most.
    assert quick(backend, results, 3.0 * len(checks.CHECKS), lambda: float(next(ticks)))
    lines = [json.loads(line) for line in (tmp_path / "lines.json").read_text().splitlines()]
    assert [line["ok"] for line in lines[: len(checks.CHECKS) - 1]] == [True] * (len(checks.CHECKS) - 1)
    assert lines[-1]["value"] == "left out: no time"


def test_a_wrong_kernel_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    backend = CudaBackend(EmulatedDevice(80), weight_bytes=1 << 28)
    right = backend.linear
    monkeypatch.setattr(backend, "linear", lambda x, w: right(x, w) * np.float32(1.001))
    monkeypatch.setattr(checks, "CHECKS", {"products": checks.products})
    monkeypatch.setattr("benchmarks.cuda.gpu_check.CHECKS", checks.CHECKS)
    results = Results(tmp_path / "lines.json")
    assert not quick(backend, results, 60.0, lambda: 0.0)
    assert all(row["ok"] is False and "at most" in row["value"] for row in results.rows)


def test_from_source_without_an_installation(tmp_path: Path) -> None:
    """A clean interpreter that sees NumPy alone: no GPU, or no CuPy, is said, with exit code 2."""
    folder = Path(np.__file__).parents[1]
    (tmp_path / "numpy").symlink_to(folder / "numpy")
    for libraries in folder.glob("numpy.libs"):
        (tmp_path / "numpy.libs").symlink_to(libraries)
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            str(ROOT / "benchmarks" / "cuda" / "gpu_check.py"),
            "--json",
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    line = json.loads((tmp_path / "out").read_text())
    assert line["name"] == "device"
    assert "CuPy: expected it installed" in line["value"]
