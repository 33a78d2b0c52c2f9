"""The commands that errors print can be run as they are, however Colibri was installed."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys

import pytest

from colibri.installation import extra_command, extra_requirements, reinstall_command, source

LINES = [
    "grpcio>=1.76",
    'cryptography>=44; extra == "tls"',
    'hdrhistogram>=0.10; extra == "bench"',
    'httpx>=0.27; python_version >= "3.8" and extra == "bench"',
    'tomli; python_version < "3" and extra == "bench"',
]


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ("tls", ["cryptography>=44"]),
        ("bench", ["hdrhistogram>=0.10", "httpx>=0.27"]),
        ("none", []),
    ],
)
def test_an_extra_is_told_by_its_own_packages(extra: str, expected: list[str]) -> None:
    assert extra_requirements(LINES, extra) == expected


@pytest.mark.parametrize("extra", ["tls", "bench", "ray"])
def test_the_printed_command_runs(extra: str) -> None:
    words = shlex.split(extra_command(extra))
    assert words[:4] == [sys.executable, "-m", "pip", "install"]
    assert "colibri-moe" not in " ".join(words)
    # They are installed here, so that pip needs no index.
    tried = subprocess.run([*words, "--no-index", "--dry-run"], capture_output=True, text=True, timeout=120)
    assert tried.returncode == 0, tried.stderr


@pytest.mark.parametrize(
    ("direct_url", "expected"),
    [
        (None, ["--force-reinstall", "--no-deps", "colibri-moe==1.2"]),
        (
            {"url": "file:///a/my%20clone", "dir_info": {"editable": True}},
            ["--no-deps", "--editable", "/a/my clone"],
        ),
        ({"url": "file:///a/clone", "dir_info": {}}, ["--force-reinstall", "--no-deps", "/a/clone"]),
        ({"url": "file:///a/c.whl", "archive_info": {}}, ["--force-reinstall", "--no-deps", "/a/c.whl"]),
        (
            {"url": "https://host/c.whl", "archive_info": {}},
            ["--force-reinstall", "--no-deps", "https://host/c.whl"],
        ),
    ],
)
def test_a_reinstallation_comes_from_the_same_place(
    direct_url: dict[str, object] | None, expected: list[str]
) -> None:
    assert source("1.2", None if direct_url is None else json.dumps(direct_url)) == expected


def test_this_installation_names_its_folder() -> None:
    assert reinstall_command().startswith(shlex.join([sys.executable, "-m", "pip", "install"]))
