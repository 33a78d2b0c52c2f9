"""A CA of one run's own, for plans whose server speaks mutual TLS with its workers and its callers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from colibri.errors import ConfigError
from colibri.installation import extra_command
from colibri.security.channel import ChannelSecurity
from colibri.security.roles import WORKER_NAME, Role

_DAYS = 1
_HOST = "localhost"


@dataclass(frozen=True, slots=True)
class Certificates:
    """server, workers: what their callers show and demand. options: for `colibri serve`."""

    server: ChannelSecurity
    workers: ChannelSecurity
    options: tuple[str, ...]


def make_certificates(folder: Path) -> Certificates:
    """Makes a CA below `folder`, and certificates for a coordinator and its workers.

    Raises ConfigError without the extra 'tls'.
    """
    try:
        from colibri.security.authority import Authority
    except ImportError as error:
        raise ConfigError("serve.mtls", f"the extra 'tls': {extra_command('tls')}", error) from None
    place = folder / "certs"
    authority = Authority.create(place, "colibri chaos", _DAYS)
    authority.issue("coordinator", Role.COORDINATOR, [_HOST], _DAYS)
    authority.issue("worker", Role.WORKER, [_HOST], _DAYS)
    ca = place / "ca.pem"
    coordinator = place / "coordinator.pem", place / "coordinator.key"
    worker = place / "worker.pem", place / "worker.key"
    options = (
        f"--tls-cert={coordinator[0]}",
        f"--tls-key={coordinator[1]}",
        f"--client-ca={ca}",
        f"--worker-ca={ca}",
        f"--worker-tls-cert={worker[0]}",
        f"--worker-tls-key={worker[1]}",
        f"--worker-tls-name={WORKER_NAME}",
    )
    server = ChannelSecurity(tls_ca=ca, tls_cert=coordinator[0], tls_key=coordinator[1])
    return Certificates(server, replace(server, tls_name=WORKER_NAME), options)
