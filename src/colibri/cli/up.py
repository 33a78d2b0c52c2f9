"""Bring a cluster up: Ray on its hosts, Colibri on Ray, and wait until it answers."""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.cli.deploy import FOLLOWING
from colibri.cli.parser import number

if TYPE_CHECKING:
    from colibri.cluster.ray.cluster_file import ClusterFile

ABOUT = """
It runs `ray up` on the file, which starts Ray on the hosts and, by the last of the head's start commands, Colibri; then
it follows what the server says until that serves. `ray up` alone does the same without waiting.
"""

_STEP = re.compile(r"\[\d+/\d+\] .*")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument(
        "--wait", type=number(1, 86400), default=900.0, metavar="S", help="seconds until it must serve"
    )
    parser.add_argument("--json", action="store_true", help="print the last line as JSON")
    parser.add_argument("--verbose", action="store_true", help="tell all that Ray says")


def add_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cluster", type=Path, metavar="CLUSTER.YAML", help="Ray's file of the cluster")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.terminal import say
    from colibri.cluster.ray.cluster_file import read_cluster_file
    from colibri.cluster.ray.remote import ENVIRONMENT, environment, follow, ray_command

    begun = time.monotonic()
    cluster = read_cluster_file(args.cluster)
    check_wheel(cluster)
    make_token(cluster)
    env = environment(cluster, os.environ)

    def left() -> float:
        remaining: float = begun + args.wait - time.monotonic()
        return max(1.0, remaining)

    def told(line: str) -> None:
        text = _ANSI.sub("", line)
        step = _STEP.search(text)
        if args.verbose or step is not None:
            say(f"{time.monotonic() - begun:6.1f} s  head: {text if step is None else step.group()}")

    follow(
        ray_command("up", "-y", "--no-config-cache", str(args.cluster)), left(), "ray up", env=env, heard=told
    )
    ray_s = time.monotonic() - begun
    say(f"{ray_s:6.1f} s  Ray runs on the head, which takes in the other hosts; Colibri starts")
    words = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items() if name == "RAY_AUTH_MODE")
    out = follow(
        ray_command("exec", str(args.cluster), f"{words} colibri deploy --follow --wait {left():.0f}"),
        left() + 30.0,
        "colibri deploy --follow",
        env=env,
        heard=_Relay(begun, args.verbose),
    )
    ready = _ready(out)
    address = _reachable(ready["target"], cluster)
    serving_s = time.monotonic() - begun
    if args.json:
        print(json.dumps({"target": address, "ray_s": ray_s, "serving_s": serving_s, "log": ready["log"]}))
    else:
        print(f"serving on {address} after {serving_s:.1f} s (log on the head: {ready['log']})", flush=True)
    return 0


def check_wheel(cluster: ClusterFile) -> None:
    """Raises ConfigError where the hosts would find nothing to install."""
    from colibri.errors import ConfigError

    folder = cluster.wheels
    if folder is not None and not list(folder.glob("colibri_moe-*.whl")):
        raise ConfigError(
            f"{cluster.path}: file_mounts",
            "a wheel of Colibri for the hosts (pip wheel --no-deps -w dist . in its repository)",
            f"none in {folder}",
        )


def make_token(cluster: ClusterFile) -> None:
    """The token by which Ray's processes know each other, made where there is none."""
    from colibri.cli.terminal import say

    token = cluster.token
    if token is None or token.exists():
        return
    token.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with open(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(secrets.token_hex(32))
    say(f"made {token}, by which Ray's processes know each other")


class _Relay:
    """Tells what the server says, once it is that which is heard."""

    def __init__(self, begun: float, verbose: bool) -> None:
        self._begun = begun
        self._open = verbose

    def __call__(self, line: str) -> None:
        from colibri.cli.terminal import say

        text = _ANSI.sub("", line)
        if self._open and not text.startswith(("{", "Shared connection")):
            say(f"{time.monotonic() - self._begun:6.1f} s  {text}")
        self._open = self._open or FOLLOWING in text


def _ready(out: str) -> dict[str, str]:
    """The ready line among what Ray prints around it. Raises ColibriError."""
    from colibri.errors import ColibriError

    for line in reversed(_ANSI.sub("", out).splitlines()):
        try:
            fields = json.loads(line)
            return {"target": str(fields["target"]), "log": str(fields["log"])}
        except (ValueError, KeyError, TypeError):
            continue
    raise ColibriError("colibri deploy --follow ended without a ready line", peer="serve")


def _reachable(target: str, cluster: ClusterFile) -> str:
    """The address for clients: where the server listens everywhere, that of the head."""
    host, _, port = target.rpartition(":")
    return f"{cluster.head}:{port}" if host in ("0.0.0.0", "[::]") and cluster.head else target
