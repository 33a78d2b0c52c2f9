"""Read what Colibri needs of cluster.yaml. It is Ray's file, and Ray checks the rest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from colibri import yaml_text
from colibri.errors import ConfigError

_TOKEN = ".ray/auth_token"
_WHEELS = "colibri/wheels"
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """provider: Ray's name of it.
    hosts: addresses, the head first; empty if a cloud gives them.
    user, key: for ssh; key None: as ssh is set up.
    token: local file that travels to the hosts as Ray's token; None: none does.
    wheels: local folder whose wheel the hosts install; None: they install none.
    """

    path: Path
    name: str
    provider: str
    hosts: tuple[str, ...]
    user: str
    key: Path | None
    token: Path | None
    wheels: Path | None = None

    @property
    def head(self) -> str:
        """The head's address; empty if only Ray knows it."""
        return self.hosts[0] if self.hosts else ""


def read_cluster_file(path: Path) -> ClusterFile:
    """Raises ConfigError for a file that is not a cluster file."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(str(path), f"at most {_MAX_BYTES} bytes", path.stat().st_size)
        root = yaml_text.load(path.read_bytes())
    except OSError as error:
        raise ConfigError(str(path), "a readable file", error.strerror) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), "YAML", str(error)) from error
    top = _section(path, "", root)
    provider = _section(path, "provider", top.get("provider"))
    auth = _section(path, "auth", top.get("auth", {}))
    mounts = _section(path, "file_mounts", top.get("file_mounts", {}))
    kind = _text(path, "provider.type", provider.get("type"))
    hosts: tuple[str, ...] = ()
    if kind == "local" and "head_ip" in provider:
        workers = provider.get("worker_ips", [])
        if not isinstance(workers, list):
            raise ConfigError(f"{path}: provider.worker_ips", "a list of addresses", type(workers).__name__)
        head = provider.get("external_head_ip", provider["head_ip"])
        hosts = tuple(_text(path, "provider", address) for address in (head, *workers))
    tokens = [local for remote, local in mounts.items() if str(remote).endswith(_TOKEN)]
    wheels = [local for remote, local in mounts.items() if str(remote).rstrip("/").endswith(_WHEELS)]
    key = auth.get("ssh_private_key")
    return ClusterFile(
        path,
        _text(path, "cluster_name", top.get("cluster_name")),
        kind,
        hosts,
        _text(path, "auth.ssh_user", auth.get("ssh_user", "root")),
        None if key is None else Path(str(key)).expanduser(),
        Path(str(tokens[0])).expanduser() if tokens else None,
        Path(str(wheels[0])).expanduser() if wheels else None,
    )


def _section(path: Path, name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: {name}" if name else str(path), "keys with values", type(value).__name__)
    return value


def _text(path: Path, name: str, value: object) -> str:
    if not isinstance(value, str) or not value or value.startswith("-"):
        raise ConfigError(f"{path}: {name}", "a text", value)
    return value
