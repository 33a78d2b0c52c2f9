"""typings/ links every part of the package: a type checker would pass over what is missing there without a
word."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINKS = ROOT / "typings" / "colibri"
MAPPED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["scikit-build"]["wheel"]["packages"]


def expected() -> dict[str, Path]:
    """name in the package -> where it lies in the repository"""
    entries = {path.name: path for path in (ROOT / "src/colibri").iterdir() if path.name != "__pycache__"}
    parts = {Path(key).name: ROOT / value for key, value in MAPPED.items() if key != "colibri"}
    return {**entries, **parts, "v1": ROOT / "build/gen/colibri/v1"}


@pytest.mark.parametrize("name", sorted(expected()))
def test_linked(name: str) -> None:
    target = expected()[name]
    link = LINKS / name
    relative = Path("../..") / target.relative_to(ROOT)
    assert link.is_symlink(), f"run: ln -s {relative} {link.relative_to(ROOT)}"
    assert link.readlink() == relative
    assert link.exists()


def test_nothing_else_is_linked() -> None:
    assert {path.name for path in LINKS.iterdir()} == set(expected())


def test_every_part_of_the_package_is_installed() -> None:
    """A top-level folder with Python files either is mapped into the package or is known not to be."""
    outside = {"benchmarks", "build", "docs", "protos", "src", "tests", "typings"}
    folders = {path.parent.name for path in ROOT.glob("*/*.py") if not path.parent.name.startswith(".")}
    assert folders - outside == {value for key, value in MAPPED.items() if key != "colibri"}
