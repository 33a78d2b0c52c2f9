"""A file's tests stay together, and so do the files that look at the whole machine."""

from __future__ import annotations

from pathlib import Path

from tests.support.scopes import WHOLE_MACHINE, scope_of, turn

ROOT = Path(__file__).parents[3]
#: What only a file of WHOLE_MACHINE may use.
_USES = ("open_network(", "ray_node(", '"netns", "add"')


def test_a_file_is_one_scope() -> None:
    assert scope_of("tests/unit/a.py::test_x[y::z]") == scope_of("tests/unit/a.py::T::test_y")
    assert scope_of("tests/unit/a.py::test_x") != scope_of("tests/unit/b.py::test_x")


def test_what_looks_at_the_machine_is_one_scope() -> None:
    scopes = {
        scope_of(f"{place}::test_x" if place.endswith(".py") else f"{place}a.py") for place in WHOLE_MACHINE
    }
    assert len(scopes) == 1
    assert scope_of("tests/unit/a.py::test_x") not in scopes
    assert [place for place in WHOLE_MACHINE if not (ROOT / place).exists()] == []


def test_no_other_file_makes_networks_or_a_ray() -> None:
    found = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if any(use in file.read_text() for use in _USES) and file != Path(__file__)
    }
    assert found
    assert [file for file in sorted(found) if not file.startswith(WHOLE_MACHINE)] == []


def test_what_takes_longest_starts_first() -> None:
    paths = [
        "tests/unit/test_a.py",
        "tests/conformance/kernels/test_a.py",
        "tests/attacks/test_a.py",
        "tests/integration/test_a.py",
        "tests/conformance/launchers/test_a.py",
        "tests/chaos/test_a.py",
    ]
    turns = [turn(f"{path}::test_x") for path in paths]
    assert turns == [3, 2, 1, 1, 0, 0]
