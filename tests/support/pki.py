"""Certificates and tokens as `colibri certs` and `colibri token` make them."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from colibri.security.authority import Authority, utc_now
from colibri.security.channel import ChannelSecurity
from colibri.security.roles import Role
from colibri.security.server import ServerSecurity
from tests.support.command import main

ROLES = ("coordinator", "router", "worker", "client", "operator")


@dataclass(frozen=True, slots=True)
class Pki:
    """folder: of the deployment's CA, with a certificate named as each role, `expired-` ones of workers and clients,
    and `other-client` and `other-worker` of a stranger's CA, `other.pem`."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Pki:
        colibri("certs", "init", str(folder))
        for role in ROLES:
            hosts = ["--host=localhost"] if Role(role).serves else []
            colibri("certs", "issue", str(folder), f"--role={role}", f"--name={role}", *hosts)
        then = utc_now() - datetime.timedelta(days=30)
        old = Authority(folder, lambda: then)
        old.issue("expired-worker", Role.WORKER, (), 10)
        old.issue("expired-client", Role.CLIENT, (), 10)
        stranger = folder / "stranger"
        colibri("certs", "init", str(stranger))
        for role in ("worker", "client"):
            colibri("certs", "issue", str(stranger), f"--role={role}", f"--name={role}")
            for suffix in (".pem", ".key"):
                (stranger / f"{role}{suffix}").rename(folder / f"other-{role}{suffix}")
        (stranger / "ca.pem").rename(folder / "other.pem")
        return cls(folder)

    @property
    def ca(self) -> Path:
        return self.folder / "ca.pem"

    def cert(self, name: str) -> Path:
        return self.folder / f"{name}.pem"

    def key(self, name: str) -> Path:
        return self.folder / f"{name}.key"

    def serves(
        self,
        name: str = "coordinator",
        *,
        mutual: bool = False,
        tokens: Path | None = None,
        reflection: bool | None = None,
    ) -> ServerSecurity:
        """Of a server with that certificate."""
        return ServerSecurity(
            self.cert(name), self.key(name), self.ca if mutual else None, tokens, reflection=reflection
        )

    def shows(
        self, name: str | None = None, token_file: Path | None = None, ca: str = "ca"
    ) -> ChannelSecurity:
        """Of a client with that certificate, which trusts CA `ca`."""
        return ChannelSecurity(
            tls_ca=self.folder / f"{ca}.pem",
            tls_cert=self.cert(name) if name else None,
            tls_key=self.key(name) if name else None,
            token_file=token_file,
        )


def new_token(folder: Path, name: str, scope: str = "client", days: float = 1) -> tuple[Path, Path]:
    """(the server's file, in `folder`, and the caller's)."""
    tokens, own = folder / "tokens", folder / f"{name}.token"
    colibri(
        "token", "new", name, f"--tokens={tokens}", f"--scope={scope}", f"--days={days:g}", f"--out={own}"
    )
    return tokens, own


def colibri(*arguments: str) -> None:
    code = main([*arguments, "--config=none"])
    if code:
        raise AssertionError(f"colibri {' '.join(arguments)}: exit code {code}")
