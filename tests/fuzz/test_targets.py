"""The coverage-guided targets, each for a few seconds from its committed corpus, in a process of its own."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CORPUS = Path(__file__).parent / "corpus"
SECONDS = 4
#: What `make sanitize` sets.
SANITIZE = ("LD_PRELOAD", "SANITIZED_MODULES", "PYTHONPATH", "PYTHONMALLOC")
needs_atheris = pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: it has no wheel for this Python",
)


def fuzz(name: str, seeds: Path, environment: dict[str, str], memory_mb: int, *options: str) -> str:
    """What libFuzzer printed. New inputs that reach more code are added to `seeds`."""
    # libFuzzer looks at ru_maxrss, and a process begins with its parent's: after other tests that alone can be 1 GB.
    inherited = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    command = [sys.executable, "-m", f"tests.fuzz.fuzz_{name}", str(seeds)]
    bounds = [
        f"-max_total_time={SECONDS}",
        "-max_len=4096",
        "-timeout=10",
        f"-rss_limit_mb={inherited + memory_mb}",
    ]
    run = subprocess.run(
        [*command, *bounds, *options, f"-artifact_prefix={seeds.parent}/"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60 + SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return run.stderr


def runs(printed: str) -> int:
    done = re.search(r"Done (\d+) runs", printed)
    assert done is not None
    return int(done.group(1))


@needs_atheris
@pytest.mark.parametrize("name", ["frame", "safetensors"])
def test_no_input_breaks_the_reader(name: str, tmp_path: Path) -> None:
    seeds = shutil.copytree(CORPUS / name, tmp_path / "corpus")
    plain = {key: value for key, value in os.environ.items() if key not in SANITIZE}
    printed = fuzz(name, seeds, plain, 1024)
    # It did look: code was covered, and more than the seeds was tried.
    assert max(map(int, re.findall(r"cov: (\d+)", printed))) > 50
    assert runs(printed) > 10 * len(list((CORPUS / name).iterdir()))
    if "SANITIZED_MODULES" in os.environ:
        # The sanitisers' library takes libFuzzer's coverage away: what was found without them is tried and mutated.
        found = len(list(seeds.iterdir()))
        printed = fuzz(name, seeds, dict(os.environ), 4096, "-keep_seed=1")
        assert found >= len(list((CORPUS / name).iterdir()))
        assert runs(printed) > 10 * found


@needs_atheris
def test_the_seeds_follow_from_the_tables() -> None:
    from tests.fuzz.make_corpus import frame_seeds, safetensors_seeds

    for folder, seeds in (("frame", frame_seeds()), ("safetensors", safetensors_seeds())):
        stored = {path.name: path.read_bytes() for path in (CORPUS / folder).iterdir()}
        assert stored == seeds, f"{folder}: run python -m tests.fuzz.make_corpus"
