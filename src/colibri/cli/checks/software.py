"""Python, the packages that Colibri stands on, and its own native parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from colibri.cli.checks.finding import Finding, fail, ok, warn
from colibri.cli.checks.machine import Machine
from colibri.installation import DISTRIBUTION, pip_command, reinstall_command

AREA = "software"
_OLDEST = (3, 11)


def check(
    machine: Machine,
    requires: Callable[[], list[str]] = lambda: metadata.requires(DISTRIBUTION) or [],
    version: Callable[[str], str] = metadata.version,
) -> Iterator[Finding]:
    """requires: requirement lines of the installed Colibri; version: of an installed distribution, raises
    PackageNotFoundError."""
    python = ".".join(map(str, machine.python))
    if machine.python < _OLDEST:
        yield fail(AREA, "Python", python, "3.11 or newer is needed", "apt-get install python3.11")
    else:
        yield ok(AREA, "Python", python)
    try:
        yield ok(AREA, "Colibri", version(DISTRIBUTION))
        lines = requires()
    except metadata.PackageNotFoundError:
        yield fail(AREA, "Colibri", "not installed", "the package has no metadata", reinstall_command())
        return
    yield from _packages(lines, version)
    try:
        other = version("colibri")
    except metadata.PackageNotFoundError:
        pass
    else:
        yield fail(
            AREA,
            "package `colibri`",
            other,
            "another project's package of the same import name overwrites this one",
            f"pip uninstall -y colibri && {reinstall_command()}",
        )
    yield from _protobuf()


def _packages(lines: list[str], version: Callable[[str], str]) -> Iterator[Finding]:
    good = []
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            yield warn(AREA, "packages", line, "no requirement that can be read")
            continue
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        mend = pip_command([f"{requirement.name}{requirement.specifier}"])
        try:
            found = version(requirement.name)
            fits = requirement.specifier.contains(found, prereleases=True)
        except metadata.PackageNotFoundError:
            yield fail(AREA, requirement.name, "not installed", f"{requirement} is needed", mend)
            continue
        except InvalidVersion:
            fits = False
        if fits:
            good.append(f"{requirement.name} {found}")
        else:
            yield fail(AREA, requirement.name, found, f"{requirement} is needed", mend)
    yield ok(AREA, "packages", ", ".join(good) or "none")


def _protobuf() -> Iterator[Finding]:
    try:
        from google.protobuf.internal import api_implementation
    except ImportError:
        return  # told among the packages
    kind = api_implementation.Type()
    if kind == "upb":
        yield ok(AREA, "protobuf engine", "upb, native")
    else:
        yield warn(
            AREA,
            "protobuf engine",
            f"implementation {kind}",
            "many times slower, and open to deeply nested messages",
            "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION; "
            + pip_command(["--force-reinstall", "--no-deps", "protobuf"]),
        )
