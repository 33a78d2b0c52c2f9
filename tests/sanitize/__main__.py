"""`make sanitize`: tests of native code over native modules with sanitisers: memory and undefined behaviour, or races.

The Makefile builds them into build/sanitized. Every process of the tests loads them (hook/), and ends with a report at
the first fault. The first argument is the mode's name; others are given to pytest. Without paths, the mode's own are
run.
"""

from __future__ import annotations

import subprocess
import sys

from tests.sanitize.modes import MODES, ROOT, environment


def main(arguments: list[str]) -> int:
    modes = {mode.name: mode for mode in MODES}
    if not arguments or arguments[0] not in modes:
        print(f"expected a mode first: {' or '.join(modes)}", file=sys.stderr)
        return 2
    mode, options = modes[arguments[0]], arguments[1:]
    if not mode.built.is_dir():
        print(f"{mode.built} is missing: run `make sanitize MODE={mode.name}`", file=sys.stderr)
        return 1
    paths = [] if any(not option.startswith("-") for option in options) else list(mode.paths)
    # A report goes past Python to stderr, right before the end: it must not be captured.
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--capture=sys",
        *(f"--ignore={path}" for path in mode.left_out),
        *paths,
        *options,
    ]
    return subprocess.run(command, cwd=ROOT, env=environment(mode), check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
