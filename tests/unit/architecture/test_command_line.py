"""The command line is on top: nothing but its own tests, and those of README and settings, imports it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CLI = "colibri.cli"
#: Files that may: tests of what README says, and of how settings are read.
ALLOWED = {
    "tests/integration/test_readme.py": "README's commands",
    "tests/integration/test_config.py": "settings",
    "tests/fuzz/test_configs.py": "settings",
    "tests/attacks/test_files_of_strangers.py": "settings",
}


def imported(source: str) -> Iterator[str]:
    """Yields the dotted names that a module imports, and the text of programs that it holds as strings."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = (
                line.split() for line in node.value.splitlines() if line.startswith(("import ", "from "))
            )
            yield from (found[1] for found in words if len(found) > 1)


def importers(root: Path) -> list[str]:
    """Returns the files outside of the command line and its own tests that import it."""
    found = []
    for path in sorted((*root.glob("*/**/*.py"),)):
        name = path.relative_to(root)
        if name.parts[0] in ("build", "typings") or name.parts[0].startswith("."):
            continue
        own = name.parts[:3] == ("src", "colibri", "cli") or (
            name.parts[0] == "tests" and "cli" in name.parts
        )
        if own or str(name) in ALLOWED:
            continue
        if any(f"{module}.".startswith(f"{CLI}.") for module in imported(path.read_text(encoding="utf-8"))):
            found.append(str(name))
    return found


def test_nobody_else_imports_it() -> None:
    assert importers(ROOT) == []


@pytest.mark.parametrize(
    "line",
    [
        f"from {CLI}.main import main",
        f"from {CLI} import options",
        "from colibri import cli",
        f"import {CLI}.verbs",
        f"PROGRAM = 'import {CLI}.verbs'",
    ],
)
def test_an_import_is_found(tmp_path: Path, line: str) -> None:
    for file in ("tests/unit/cli/test_a.py", "src/colibri/cli/a.py", "tests/support/b.py", "benchmarks/c.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(f"def f():\n    {line}\n")
    assert importers(tmp_path) == ["benchmarks/c.py", "tests/support/b.py"]
