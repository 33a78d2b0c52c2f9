"""Measure what a process holds, as the kernel tells (man 5 proc). It must stay flat however often workers die."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from colibri.deadline import Clock

SAMPLE_S = 1.0
_SHM = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Held:
    """fds, of which sockets and mapped (files without a name: shared memory); threads; rss_bytes of private
    memory and of all; shm_files: names in /dev/shm; children: processes that live."""

    fds: int
    sockets: int
    mapped: int
    threads: int
    anonymous_bytes: int
    rss_bytes: int
    shm_files: int
    children: int


def held_by(pid: int) -> Held:
    """Raises OSError when the process has ended."""
    folder = Path("/proc") / str(pid)
    links = []
    for name in os.listdir(folder / "fd"):
        try:
            links.append(os.readlink(folder / "fd" / name))
        except FileNotFoundError:
            continue  # closed meanwhile
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    children = 0
    for task in os.listdir(folder / "task"):
        try:
            children += len((folder / "task" / task / "children").read_text().split())
        except OSError:
            continue
    return Held(
        fds=len(links),
        sockets=sum(link.startswith("socket:") for link in links),
        mapped=sum(link.startswith("/memfd:") for link in links),
        threads=int(status["Threads"]),
        anonymous_bytes=int(status["RssAnon"].split()[0]) * 1024,
        rss_bytes=int(status["VmRSS"].split()[0]) * 1024,
        shm_files=len(list(_SHM.iterdir())) if _SHM.is_dir() else 0,
        children=children,
    )


class Sampler:
    """Samples once a second, on a thread of its own."""

    def __init__(self, pid: int, clock: Clock, every_s: float = SAMPLE_S) -> None:
        self._pid = pid
        self._clock = clock
        self._every_s = every_s
        self._samples: list[tuple[float, Held]] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chaos-resources", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> tuple[tuple[float, Held], ...]:
        """Stops, and returns (time, what was held), in order."""
        self._stopping.set()
        self._thread.join(10.0)
        return tuple(self._samples)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._samples.append((self._clock(), held_by(self._pid)))
            except (OSError, KeyError, ValueError):
                return  # the process has ended; what was seen before stays
            self._stopping.wait(self._every_s)


def growth(samples: Sequence[tuple[float, Held]], share: float = 0.2) -> Mapping[str, float]:
    """Returns the largest of the last `share` of the samples minus the largest of the first: what did not come back.

    Empty if there are too few samples.
    """
    count = max(3, int(len(samples) * share))
    if len(samples) < 2 * count:
        return {}
    first = [asdict(held) for _, held in samples[:count]]
    last = [asdict(held) for _, held in samples[-count:]]
    return {name: max(h[name] for h in last) - max(h[name] for h in first) for name in first[0]}
