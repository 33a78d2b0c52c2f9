"""The import rules of pyproject.toml hold, and the checker sees the whole tree.

import-linter finds packages as Python does, and an editable installation maps them in ways that it cannot
follow. So it runs without site hooks over a tree of links, made from typings/, in which `colibri.kernels`
gets the `__init__.py` that it must not have in the repository (see pyproject.toml).
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
LINT = "from importlinter.cli import lint_imports_command; lint_imports_command()"
MODULES = "import grimp; print(*grimp.build_graph('colibri', cache_dir=None).modules)"


def linked_tree(folder: Path) -> Path:
    package = folder / "colibri"
    package.mkdir()
    for entry in (ROOT / "typings" / "colibri").iterdir():
        if entry.name == "kernels":
            (package / "kernels").mkdir()
            (package / "kernels" / "__init__.py").touch()
            for part in entry.iterdir():
                (package / "kernels" / part.name).symlink_to(part.resolve())
        else:
            (package / entry.name).symlink_to(entry.resolve())
    return package


def run(tree: Path, program: str, *args: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(tree.parent), sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    return subprocess.run(
        [sys.executable, "-S", "-c", program, *args],
        cwd=tree.parent,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    return run(tree, LINT, str(ROOT / "pyproject.toml"), "--no-cache")


def test_contracts_hold(tmp_path: Path) -> None:
    result = lint(linked_tree(tmp_path))
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_checker_sees_every_module(tmp_path: Path) -> None:
    tree = linked_tree(tmp_path)
    seen = set(run(tree, MODULES).stdout.split())
    expected = set()
    for file in (Path(at) / name for at, _, names in os.walk(tree, followlinks=True) for name in names):
        if file.suffix == ".py":
            module = file.relative_to(tree.parent).with_suffix("")
            expected.add(".".join(module.parts).removesuffix(".__init__"))
    assert "colibri.kernels.api" in expected
    assert seen == expected


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("errors.py", "import colibri.kernels.api", "nothing imports upwards"),
        ("security", "import colibri.rpc", "nothing imports upwards"),
        ("kernels/extra.py", "import colibri.errors", "kernels import arrays only"),
        ("kernels/extra.py", "import grpc", "kernels import arrays only"),
        ("coordinator", "import colibri.expert_service", "the coordinator knows no worker"),
        ("router_service", "import colibri.models", "the router knows no checkpoint"),
        ("cluster/workers", "import colibri.kernels.api", "launchers read no weights"),
        ("cli/extra.py", "import colibri.models.confined.template", "strangers' programs run confined"),
        ("coordinator", "import jinja2", "strangers' programs run confined"),
        ("coordinator", "import tokenizers", "tokenizers are made, or decode"),
        ("cluster/workers", "import rich", "only the command line paints"),
        ("cluster/machine", "import colibri.cluster.placing", "folders of the cluster stand in layers"),
        ("deployment", "import colibri.bench.model", "what serves loads nothing that measures"),
        ("bench/load", "import colibri.bench.chaos.plan", "nothing imports upwards"),
        ("extra.py", "", "exhaustive"),
    ],
)
def test_a_forbidden_import_is_found(tmp_path: Path, module: str, line: str, contract: str) -> None:
    tree = linked_tree(tmp_path)
    target = tree / module
    if target.parent.is_symlink():  # else the file would be written into the repository
        part = target.parent.resolve()
        target.parent.unlink()
        target.parent.mkdir()
        for entry in part.iterdir():
            (target.parent / entry.name).symlink_to(entry)
    if target.is_symlink():
        target.unlink()
    if target.suffix != ".py":
        target.mkdir()
        target = target / "__init__.py"
    target.write_text(line + "\n")
    result = lint(tree)
    assert result.returncode != 0
    assert contract in result.stdout
