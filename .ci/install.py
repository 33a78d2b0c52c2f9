"""Install Colibri, editable, into the environment of the Python that runs this: `.venv/bin/python .ci/install.py test`.

Build requirements go into the same environment, not into a new one for each build: the paths of what C++ files include
stay the same, so nothing is compiled twice. ccache is used where it is installed.

Versions: those of requirements/py3.X.txt for this Python (`make lock`), if there is such a file. --versions takes
those of another file, or with `newest` whatever the ranges of pyproject.toml allow,
and builds as a user's pip does, apart.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: How ninja tells a step: done, all, what.
_STEP = re.compile(r"\[(\d+)/(\d+)\] (.+)")
#: A line each so many steps, where no terminal can be painted over.
_EACH = 10
#: Lines of the log that are shown when something fails.
_LAST = 40


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("extras", nargs="*", help="extras of pyproject.toml, such as test")
    parser.add_argument("--versions", metavar="FILE", help="constraints, or `newest` for none")
    parser.add_argument("--build-dir", metavar="DIR", help="for an environment other than .venv")
    args = parser.parse_args()
    os.chdir(ROOT)
    limits = constraints(args.versions)
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    settings = ["-C", f"build-dir={args.build_dir}"] if args.build_dir else []
    if args.versions is None:
        settings.append("--no-build-isolation")
        for needs in build_requirements():
            subprocess.run([*pip, "--quiet", *limits, *needs], check=True)
    target = f".[{','.join(args.extras)}]" if args.extras else "."
    # -v: the only way to see what the compiler does.
    command = [*pip, "-v", *limits, *settings]
    if args.versions == "newest":
        command.append("--upgrade")
    return told([*command, "--editable", target], Path("build/install.log"))


def constraints(versions: str | None) -> list[str]:
    file = Path(versions or "requirements/py{}.{}.txt".format(*sys.version_info))
    if versions == "newest" or (versions is None and not file.exists()):
        return []
    return ["--constraint", str(file)]


def build_requirements() -> Iterator[list[str]]:
    """Yield what the build needs, then what the build itself asks for once that is there (CMake and ninja, unless the
    system's will do)."""
    yield tomllib.loads(Path("pyproject.toml").read_text())["build-system"]["requires"]
    code = (
        "from scikit_build_core.build import get_requires_for_build_editable as f; print(*f({}), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    if more := done.stdout.split("\n")[:-1]:
        yield more


def told(command: Sequence[str], log: Path) -> int:
    """Run it; keep what it says in `log`, and tell how far the compiler is. Return its exit code."""
    log.parent.mkdir(exist_ok=True)
    environment = dict(os.environ)
    if shutil.which("ccache"):
        environment.setdefault("CMAKE_CXX_COMPILER_LAUNCHER", "ccache")
        environment.setdefault("CCACHE_BASEDIR", str(ROOT))
        environment.setdefault("CCACHE_NOHASHDIR", "1")
    shown = sys.stderr.isatty()
    lines: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if text := progress(line, every=1 if shown else _EACH):
                print(
                    f"\r\x1b[K{text}" if shown else text,
                    end="" if shown else "\n",
                    file=sys.stderr,
                    flush=True,
                )
    if shown:
        print("\r\x1b[K", end="", file=sys.stderr)
    log.write_text("".join(lines))
    if process.returncode:
        print("".join(lines[-_LAST:]), f"the whole of it: {log}", sep="", file=sys.stderr)
    return process.returncode


def progress(line: str, every: int) -> str:
    """Return what to tell of one line of the build, empty for most."""
    if "Installing collected packages: " in line:
        return f"installing {line.count(',') + 1} packages"
    found = _STEP.search(line)
    if found is None or found[1] == "0" or (int(found[1]) % every and found[1] != found[2]):
        return ""
    return f"compiling: {found[1]} of {found[2]}, {found[3].rpartition('/')[2].removesuffix('.o')}"


if __name__ == "__main__":
    sys.exit(main())
