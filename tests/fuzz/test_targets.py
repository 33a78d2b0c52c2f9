"""The coverage-guided targets, each for a few seconds from its committed corpus, in a process of its own."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"
SECONDS = 4
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: it has no wheel for this Python",
)


@needs_atheris
@pytest.mark.parametrize("name", ["frame", "safetensors"])
def test_no_input_breaks_the_reader(name: str, tmp_path: Path) -> None:
    seeds = shutil.copytree(CORPUS / name, tmp_path / "corpus")
    command = [sys.executable, "-m", f"tests.fuzz.fuzz_{name}", str(seeds)]
    bounds = [f"-max_total_time={SECONDS}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=1024"]
    run = subprocess.run(
        [*command, *bounds, f"-artifact_prefix={tmp_path}/"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60 + SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    # It did look: code was covered, and more than the seeds was tried.
    assert max(map(int, re.findall(r"cov: (\d+)", run.stderr))) > 50
    done = re.search(r"Done (\d+) runs", run.stderr)
    assert done is not None
    assert int(done.group(1)) > 10 * len(list((CORPUS / name).iterdir()))


@needs_atheris
def test_the_seeds_follow_from_the_tables() -> None:
    from tests.fuzz.make_corpus import frame_seeds, safetensors_seeds

    for folder, seeds in (("frame", frame_seeds()), ("safetensors", safetensors_seeds())):
        stored = {path.name: path.read_bytes() for path in (CORPUS / folder).iterdir()}
        assert stored == seeds, f"{folder}: run python -m tests.fuzz.make_corpus"
