"""Take a cluster down: the server, Ray, and a look at each host whether anything is left."""

from __future__ import annotations

import argparse
import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from colibri.cli.parser import number
from colibri.cli.up import add_file

if TYPE_CHECKING:
    from colibri.cluster.ray.cluster_file import ClusterFile
    from colibri.cluster.ray.leftovers import Leftovers

ABOUT = """
Requests that run may end within --grace. With provider `local` each host is then visited: what `ray down` leaves there
(it stops the head only) is ended, and processes, sockets and shared memory are looked for. Exit code 1 names what is
left and where. In a cloud, `ray down` ends the machines themselves.
"""

_STOP_S = 60.0
_RAY_DOWN_S = 120.0
_HOST_S = 90.0
#: Ray's own end first, by force; then ours, for what that leaves.
_CLEAN = "ray stop --force > /dev/null 2>&1; python -m colibri.cluster.ray.leftovers --end"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_file(parser)
    parser.add_argument(
        "--grace", type=number(0, 3600), default=30.0, metavar="S", help="seconds for requests that run"
    )
    parser.add_argument("--json", action="store_true", help="print what is left as JSON")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.terminal import say
    from colibri.cluster.ray.cluster_file import read_cluster_file
    from colibri.cluster.ray.remote import environment, follow, ray_command
    from colibri.errors import ColibriError

    cluster = read_cluster_file(args.cluster)
    env = environment(cluster, os.environ)
    stop = f"RAY_AUTH_MODE=token colibri deploy --stop --grace {args.grace:g}"
    steps = (
        ("the server ends", ray_command("exec", str(args.cluster), stop), args.grace + _STOP_S),
        ("Ray ends", ray_command("down", "-y", str(args.cluster)), _RAY_DOWN_S),
    )
    for text, command, timeout_s in steps:
        say(text)
        try:
            follow(command, timeout_s, f"ray {command[1]}", env=env)
        except ColibriError as error:  # a host that is gone must not keep the others up
            say(f"{text}: {error.message}")
    if not cluster.hosts:
        say(f"provider {cluster.provider}: its machines are gone, so is what ran there")
        return 0
    found, unseen = _visit(cluster)
    if args.json:
        print(json.dumps({"left": {host: left.describe() for host, left in found.items()}, "unseen": unseen}))
    else:
        for host in cluster.hosts:
            print(f"{host}: {unseen[host] if host in unseen else found[host].describe()} left", flush=True)
    return 1 if unseen or any(found.values()) else 0


def _visit(cluster: ClusterFile) -> tuple[dict[str, Leftovers], dict[str, str]]:
    """(what is left by host, why a host could not be looked at)"""
    from colibri.cluster.ray.leftovers import Leftovers
    from colibri.cluster.ray.remote import follow, host_command
    from colibri.errors import ColibriError

    found: dict[str, Leftovers] = {}
    unseen: dict[str, str] = {}

    def visit(host: str) -> None:
        try:
            out = follow(host_command(cluster, host, _CLEAN), _HOST_S, f"host {host}")
            fields = json.loads(out.splitlines()[-1])
            found[host] = Leftovers(**{name: tuple(fields[name]) for name in fields})
        except (ColibriError, ValueError, IndexError, TypeError) as error:
            unseen[host] = f"not seen ({error}), what is"

    with ThreadPoolExecutor(max_workers=16) as pool:
        list(pool.map(visit, cluster.hosts))
    return found, unseen
