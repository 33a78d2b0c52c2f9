"""The package as of a commit and as of now, side by side: sources of each, over one build of what is compiled."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
from pathlib import Path

import colibri.v1

ROOT = Path(__file__).resolve().parents[2]
#: Where hardening began.
BEFORE = "e0edeea"


def package_of(commit: str | None, folder: Path) -> Path:
    """Puts the sources of a commit (None: as they lie here) under `folder` as an importable package; returns what must
    be in PYTHONPATH. Compiled modules and generated messages are those of this installation."""
    folder.mkdir(parents=True)
    mapped = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]["packages"]
    if commit is None:
        for source in mapped.values():
            shutil.copytree(ROOT / source, folder / source, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        archive = subprocess.run(
            ["git", "-C", str(ROOT), "archive", commit, *mapped.values()], check=True, capture_output=True
        ).stdout
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
    made = folder / "src" / "colibri"
    for name, source in mapped.items():
        part = Path(name).name
        if part != "colibri":
            (folder / source).rename(made / part)
    built = Path(colibri.v1.__file__).parent
    shutil.copytree(built, made / "v1", ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    for library in built.parent.glob("*/*.so"):
        shutil.copy(library, made / library.parent.name)
    return made.parent


def run_python(package: Path, program: str, *arguments: str) -> str:
    """Returns what the program prints. Runs it without site hooks, which would lead to this installation."""
    path = os.pathsep.join([str(package), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    return subprocess.run(
        [sys.executable, "-S", "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    ).stdout
