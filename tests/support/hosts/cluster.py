"""The repository's cluster.yaml and colibri.yaml over the hosts of a lab: what an operator does, from outside."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from colibri.client.operator import Operator
from colibri.errors import ColibriError
from colibri.security.channel import ChannelSecurity
from tests.support.hosts.lab import ROOT, Lab

#: Addresses in cluster.yaml, the head first.
_ADDRESSES = ("10.0.0.11", "10.0.0.12", "10.0.0.13")
PORT = 50051
_COMMAND_S = 240.0


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str
    seconds: float


@dataclass(slots=True)
class Cluster:
    """folder: of the operator, with the two files, the certificates and Ray's token. environment: of all that it
    runs."""

    lab: Lab
    folder: Path
    environment: Mapping[str, str]
    security: ChannelSecurity

    @property
    def target(self) -> str:
        return f"{self.lab.head.address}:{PORT}"

    def command(self, *argv: str, timeout_s: float = _COMMAND_S) -> Done:
        """As the operator, in its folder. Raises ColibriError when it does not end in time."""
        begun = time.monotonic()
        try:
            done = subprocess.run(
                argv,
                cwd=self.folder,
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ColibriError(
                f"{' '.join(argv)}: not done within {timeout_s:g} s: {error.output}"
            ) from error
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - begun)

    def operator(self) -> Operator:
        return Operator(self.target, security=self.security)

    def log(self) -> str:
        """What the server on the head has said."""
        return self.lab.head.run("cat ~/.cache/colibri/logs/serve.log")


def make_cluster(lab: Lab, model: Path, serve: Mapping[str, Any]) -> Cluster:
    """serve: options in place of those in colibri.yaml."""
    folder = lab.folder / "operator-work"
    folder.mkdir()
    (folder / "dist").mkdir()
    (folder / "dist" / "colibri_moe-0-py3-none-any.whl").touch()  # never installed: the hosts have Colibri
    (folder / "cluster.yaml").write_text(_cluster_file(lab))
    options = yaml.safe_load((ROOT / "colibri.yaml").read_text())
    options["model"] = str(model)
    options["serve"] |= dict(serve)
    (folder / "colibri.yaml").write_text(yaml.safe_dump(options))
    security = ChannelSecurity(
        tls_ca=folder / "certs/ca.pem",
        tls_cert=folder / "certs/operator.pem",
        tls_key=folder / "certs/operator.key",
    )
    environment = lab.environment() | {
        "COLIBRI_TLS_CA": str(security.tls_ca),
        "COLIBRI_TLS_CERT": str(security.tls_cert),
        "COLIBRI_TLS_KEY": str(security.tls_key),
    }
    cluster = Cluster(lab, folder, environment, ChannelSecurity())
    for words in (
        ("init", "certs"),
        ("issue", "certs", "--role=coordinator", "--name=coordinator", f"--host={lab.head.address}"),
        ("issue", "certs", "--role=worker", "--name=worker"),
        ("issue", "certs", "--role=operator", "--name=operator"),
    ):
        done = cluster.command("colibri", "certs", *words, "--config=none")
        if done.code:
            raise ColibriError(f"colibri certs {' '.join(words)}: {done.err}")
    cluster.security = security
    return cluster


def _cluster_file(lab: Lab) -> str:
    text = (ROOT / "cluster.yaml").read_text()
    for address, host in zip(_ADDRESSES, lab.hosts, strict=False):
        text = text.replace(address, host.address)
    file = yaml.safe_load(text)
    file["cluster_name"] = f"colibri-{lab.network.layout.hub}"
    file["provider"]["worker_ips"] = [host.address for host in lab.workers]
    file["min_workers"] = file["max_workers"] = len(lab.workers)
    file["auth"] = {"ssh_user": "root", "ssh_private_key": str(lab.key)}
    # Colibri is installed there already, as the hosts see this machine's.
    file["setup_commands"] = [command for command in file["setup_commands"] if "venv" not in command]
    return yaml.safe_dump(file, width=100000)
