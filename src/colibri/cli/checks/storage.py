"""Where Colibri keeps things: its home folder, and the folder for sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

from colibri.cli.checks.finding import Finding, fail, ok, warn
from colibri.cli.checks.machine import Machine
from colibri.cluster.workers.run_folder import longest_parent
from colibri.deployment.sizes import size
from colibri.models.demo_model import demo_model_path, is_ready
from colibri.models.home import colibri_home

AREA = "storage"
_DEMO_BYTES = 3 << 29
_TEMP_BYTES = 64 << 20


def check(machine: Machine) -> Iterator[Finding]:
    home = colibri_home(machine.environ)
    ready = is_ready(demo_model_path(home))
    yield from _writable(machine, "home", home, 0 if ready else _DEMO_BYTES, "COLIBRI_HOME")
    if ready:
        yield ok(AREA, "demo model", "ready")
    else:
        yield ok(AREA, "demo model", "not made yet", "`make demo` or `colibri demo` makes it")
    yield from _writable(machine, "temporary files", machine.temp, _TEMP_BYTES, "TMPDIR")
    length, longest = len(os.fsencode(machine.temp)), longest_parent(["w99"])
    if length > longest:
        yield fail(
            AREA,
            "socket paths",
            f"{length} bytes",
            f"at most {longest} leave room for sockets: workers could not listen below {machine.temp}",
            "export TMPDIR=/tmp (or --transport tcp)",
        )


def _writable(machine: Machine, name: str, folder: Path, wanted: int, variable: str) -> Iterator[Finding]:
    at = folder
    while not at.exists() and at != at.parent:
        at = at.parent
    mend = f"export {variable}=/a/folder/of/yours"
    try:
        with TemporaryFile(dir=at):
            pass
    except OSError as error:
        yield fail(AREA, name, str(folder), f"{at} cannot be written: {error.strerror}", mend)
        return
    free = machine.free_bytes(at)
    value = f"{folder}, {size(free)} free"
    if free < wanted:
        yield warn(AREA, name, value, f"{size(wanted)} are wanted", f"df -h {at}; or {mend}")
    else:
        yield ok(AREA, name, value)
