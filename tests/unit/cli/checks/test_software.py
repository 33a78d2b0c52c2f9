from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import PackageNotFoundError
from pathlib import Path

from colibri.cli.checks.finding import Verdict
from colibri.cli.checks.software import check
from tests.unit.cli.checks.machines import machine, named


def installed(**versions: str) -> Callable[[str], str]:
    known = {"colibri-moe": "0.1.0", **{name.replace("_", "-"): text for name, text in versions.items()}}

    def version(name: str) -> str:
        if name not in known:
            raise PackageNotFoundError(name)
        return known[name]

    return version


def test_packages(tmp_path: Path) -> None:
    lines = [
        "grpcio>=1.76",
        "protobuf<8,>=6.31.1",
        "numpy>=2",
        'cupy-cuda12x>=13; extra == "gpu"',
        "rich>=13",
    ]
    versions = installed(grpcio="1.75.0", protobuf="8.0.0rc1", numpy="2.4.6")
    found = list(check(machine(tmp_path), lambda: lines, versions))
    assert named(found, "packages").value == "numpy 2.4.6"
    assert named(found, "grpcio").verdict is Verdict.FAIL
    assert named(found, "grpcio").mend.endswith(" -m pip install 'grpcio>=1.76'")
    assert named(found, "protobuf").verdict is Verdict.FAIL
    assert named(found, "rich").value == "not installed"
    assert not [finding for finding in found if "cupy" in finding.name]


def test_python_and_colibri(tmp_path: Path) -> None:
    old = list(check(machine(tmp_path, python=(3, 10, 4)), list, installed()))
    assert (named(old, "Python").verdict, named(old, "Python").value) == (Verdict.FAIL, "3.10.4")
    assert named(old, "Colibri").value == "0.1.0"

    def nothing(name: str) -> str:
        raise PackageNotFoundError(name)

    absent = list(check(machine(tmp_path / "b"), list, nothing))
    assert named(absent, "Colibri").verdict is Verdict.FAIL


def test_the_other_colibri(tmp_path: Path) -> None:
    found = list(check(machine(tmp_path), list, installed(colibri="0.0.1")))
    assert named(found, "package `colibri`").verdict is Verdict.FAIL


def test_this_environment_is_as_required(tmp_path: Path) -> None:
    found = list(check(machine(tmp_path)))
    assert {finding.verdict for finding in found} == {Verdict.OK}
    assert "grpcio " in named(found, "packages").value
