"""Addresses that Colibri would serve on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from colibri.cli.checks.finding import Finding, ok, warn
from colibri.cli.checks.machine import Machine
from colibri.errors import ColibriError

AREA = "network"


def check(machine: Machine, addresses: Sequence[str]) -> Iterator[Finding]:
    for address in addresses:
        try:
            machine.bind(address)
            yield ok(AREA, address, "free")
        except ColibriError as error:
            port = address.rpartition(":")[2]
            look = f"ss -ltnp 'sport = :{port}'; or serve with --listen 127.0.0.1:0"
            yield warn(AREA, address, "cannot be served", error.message, look if port.isdecimal() else "")
