"""Work out versions with uv: `lock` writes requirements/py3.X.txt, `lowest FILE` the lowest ones.

uv, since pip resolves only for the Python that it runs on, and only to the newest versions. Only these two commands
need it: pip installs, with the files as constraints.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "requirements"
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
#: What a build asks for where the system has none.
_BUILDERS = ("cmake>=3.26", "ninja>=1.5")
#: What judges or runs code keeps the version of the lock at both ends of the ranges; what it stands on gives way.
_TOOLS = (
    "pytest",
    "pytest-timeout",
    "pytest-xdist",
    "hypothesis",
    "scikit-build-core",
    "nanobind",
    "grpcio-tools",
)
_HEAD = "# Written by `make lock`: the versions that `make` installs for Python {}. Constraints of pip.\n"


def main(arguments: list[str]) -> int:
    match arguments:
        case ["lock"]:
            FOLDER.mkdir(exist_ok=True)
            for python in PYTHONS:
                text = resolved(
                    f"--python-version={python}", "--extra=test", also=[*build_requirements(), *_BUILDERS]
                )
                (FOLDER / f"py{python}.txt").write_text(_HEAD.format(python) + text)
        case ["lowest", file]:
            this = "{}.{}".format(*sys.version_info)
            low = resolved(
                f"--python-version={this}",
                "--resolution=lowest-direct",
                *(f"--extra={extra}" for extra in ("bench", "ray", "tls")),
                also=[],
            )
            lock = (FOLDER / f"py{this}.txt").read_text().splitlines()
            tools = [line for line in lock if name_of(line) in _TOOLS]
            Path(file).write_text(low + "\n".join(tools) + "\n")
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def resolved(*options: str, also: list[str]) -> str:
    """Return a line `name==version` for each package that pyproject.toml and `also` come to."""
    command = [
        str(Path(sys.executable).with_name("uv")),
        "pip",
        "compile",
        "--quiet",
        "--no-header",
        "--no-annotate",
    ]
    platform = "--python-platform=x86_64-manylinux_2_28"
    done = subprocess.run(
        [*command, platform, *options, "pyproject.toml", "-"],
        input="\n".join(also),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return done.stdout


def build_requirements() -> list[str]:
    found: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return found


def name_of(line: str) -> str:
    return line.partition("==")[0].strip().lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
