"""Three hosts and their operator, who sits on this machine: the bridge between them is the network."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from colibri.bench.chaos.network.base import Network
from colibri.bench.chaos.network.build import open_network
from colibri.bench.chaos.network.commands import run, works
from colibri.bench.chaos.plan import LinkQuality
from tests.support.hosts.host import Host

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Lab:
    """folder: of the operator; home: the operator's, HOME of what is run. key: lets the operator in everywhere."""

    folder: Path
    home: Path
    key: Path
    hosts: tuple[Host, ...]
    network: Network

    @property
    def head(self) -> Host:
        return self.hosts[0]

    @property
    def workers(self) -> tuple[Host, ...]:
        return self.hosts[1:]

    def cut(self, host: Host) -> None:
        """Nothing passes to or from it, and nobody is told."""
        self.network.set_up(host.place.worker, False)

    def heal(self, host: Host) -> None:
        self.network.set_up(host.place.worker, True)

    def environment(self) -> dict[str, str]:
        """Of what the operator runs: no token, state or temporary file of anybody else's."""
        temporary = self.folder / "tmp"
        temporary.mkdir(exist_ok=True)
        return {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "COLIBRI_"))
            },
            "HOME": str(self.home),
            "TMPDIR": str(temporary),
            "RAY_TMPDIR": str(temporary),
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
        }


@contextlib.contextmanager
def hosts(count: int, models: Sequence[Path] = ()) -> Iterator[Lab]:
    """models: folders that every host has at the same path. Leaves nothing behind. Raises ColibriError."""
    with contextlib.ExitStack() as undo:
        folder = Path(tempfile.mkdtemp(prefix="colibri-hosts-"))
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        run("mount", "-t", "tmpfs", "-o", "size=2g,mode=700", "tmpfs", str(folder))
        undo.callback(works, "umount", "-l", str(folder))
        home, key = folder / "operator", folder / "key"
        home.mkdir()
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True, timeout=30
        )
        network = undo.enter_context(
            open_network([f"h{n}" for n in range(count)], LinkQuality(), shaped=False)
        )
        bound = _bound(models)
        made = tuple(Host(place, folder / place.worker, key, bound) for place in network.layout.places)
        for host in made:
            undo.callback(host.off)
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(Host.boot, made))
        yield Lab(folder, home, key, made, network)


def _bound(models: Sequence[Path]) -> list[Path]:
    """Python, its packages, Colibri and the models, wherever they lie."""
    wanted = [Path(sys.base_prefix), Path(sys.prefix), ROOT, *models]
    found: list[Path] = []
    for path in (path.resolve() for path in wanted):
        if path not in found and not str(path).startswith(("/usr", "/lib")):
            found.append(path)
    return sorted(found, key=lambda path: len(path.parts))
