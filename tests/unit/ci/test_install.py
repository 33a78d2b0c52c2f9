"""What `make` tells of a build, and which versions it takes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ci_install", ROOT / ".ci" / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "  [20/73] Building CXX object kernels/cpu/CMakeFiles/colibri_isa.dir/isa_avx2.cpp.o\n",
            "compiling: 20 of 73, isa_avx2.cpp",
        ),
        ("  [73/73] Linking CXX shared module kernels/cpu/_native.so", "compiling: 73 of 73, _native.so"),
        ("  [21/73] Building CXX object kernels/cpu/CMakeFiles/_native.dir/gate.cpp.o", ""),
        ("  [0/2] Re-checking globbed directories...", ""),
        ("Installing collected packages: xxhash, numpy", "installing 2 packages"),
        ("  -- Configuring done (1.2s)", ""),
    ],
)
def test_every_tenth_step_is_told(install: ModuleType, line: str, told: str) -> None:
    assert install.progress(line, every=10) == told


def test_a_failure_shows_the_end_of_the_log(
    install: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "build" / "install.log"
    code = "import sys; print(*range(100), sep='\\n'); print('fatal: no such file', file=sys.stderr); sys.exit(3)"
    assert install.told([sys.executable, "-c", code], log) == 3
    shown = capsys.readouterr().err.splitlines()
    assert shown[-2:] == ["fatal: no such file", f"the whole of it: {log}"]
    assert "10" not in shown
    assert log.read_text().startswith("0\n1\n")


def test_constraints(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert install.constraints("newest") == []
    assert install.constraints("low.txt") == ["--constraint", "low.txt"]
    ours = "requirements/py{}.{}.txt".format(*sys.version_info)
    assert install.constraints(None) == ["--constraint", ours]


def test_each_python_has_a_lock() -> None:
    for minor in range(11, 15):
        lines = (ROOT / "requirements" / f"py3.{minor}.txt").read_text().splitlines()
        names = {line.partition("==")[0] for line in lines[1:]}
        assert {"ruff", "mypy", "numpy", "pytest", "grpcio-tools", "scikit-build-core", "nanobind"} <= names
