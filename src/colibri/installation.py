"""Commands that mend this installation: they work however Colibri was installed, since no index is known to have it."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from importlib import metadata
from urllib.parse import unquote, urlparse

from packaging.requirements import Requirement

DISTRIBUTION = "colibri-moe"


def extra_command(extra: str) -> str:
    """The shell command that installs what the extra `extra` needs into this Python.

    It names the packages of the extra, not Colibri: nothing is built or replaced, and no index has to offer Colibri.
    """
    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        lines = []
    return pip_command(extra_requirements(lines, extra) or ["--editable", f".[{extra}]"])


def reinstall_command() -> str:
    """The shell command that installs Colibri anew from where it came."""
    try:
        distribution = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return pip_command(["--editable", "."])
    return pip_command(source(distribution.version, distribution.read_text("direct_url.json")))


def extra_requirements(lines: Sequence[str], extra: str) -> list[str]:
    """Requirements that `extra` adds.

    lines: all requirements of the distribution, as its metadata has them.
    """
    found = []
    for line in lines:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            requirement.marker = None
            found.append(str(requirement))
    return found


def source(version: str, direct_url: str | None) -> list[str]:
    """Arguments of `pip install` for another installation of the same kind.

    version: of the installed distribution.
    direct_url: text of its direct_url.json (PEP 610). None: it came from an index.
    """
    if direct_url is None:
        return ["--force-reinstall", "--no-deps", f"{DISTRIBUTION}=={version}"]
    origin = json.loads(direct_url)
    url = str(origin["url"])
    folder = unquote(urlparse(url).path) if url.startswith("file://") else url
    if origin.get("dir_info", {}).get("editable"):
        return ["--no-deps", "--editable", folder]
    return ["--force-reinstall", "--no-deps", folder]


def pip_command(arguments: Sequence[str]) -> str:
    """`pip install` of this Python, quoted for a shell."""
    return shlex.join([sys.executable or "python3", "-m", "pip", "install", *arguments])
