"""Tries are counted over a run, alike in its summary and in its JUnit file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.tries import of_junit, total

ROOT = Path(__file__).parents[3]
TESTS = """
def test_one(tries):
    tries("oversized", 12)
    tries("misshapen", 3)
def test_two(tries):
    tries("oversized", 1000)
    assert False
def test_none(tries):
    tries("none", 0)
"""


def test_totals_take_only_tries() -> None:
    assert total([("tries.a", 2), ("other", 5), ("tries.a", "3")]) == {"a": 5}


def test_a_run_counts_its_tries(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests/attacks/conftest.py").read_text())
    (tmp_path / "test_attacks.py").write_text(TESTS)
    junit = tmp_path / "junit.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={junit}"]
    command += ["-o", f"pythonpath={ROOT}", f"--rootdir={tmp_path}", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    assert "1,012  oversized" in done.stdout, done.stdout + done.stderr
    assert "1,015  together" in done.stdout
    assert "expected at least 1, got 0" in done.stdout
    assert of_junit(junit) == {"oversized": 1012, "misshapen": 3}
