"""The line pack-load: loading a pack's experts against reading the same bytes, the files in the page cache."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from benchmarks.cpu_kernels import whole_models
from benchmarks.table import Outcome
from colibri.expert_service.store import WeightStore
from colibri.kernels.api import Backend
from colibri.kernels.factory import make_backend
from colibri.models.model import default_mode
from colibri.models.packs.pack import Pack

ROUNDS = 7


def read_plainly(pack: Pack, backend: Backend) -> float:
    """Seconds to read every expert's bytes, in one call each, into memory like that of a loaded pack; nothing is
    looked at."""
    held, handles = [], {name: os.open(pack.folder / name, os.O_RDONLY) for name in pack.manifest.weights}
    begin = time.perf_counter()
    for name, blob in pack.manifest.blobs.items():
        if ".experts." in name:
            memory = backend.allocate(blob.bytes)
            at = 0
            while at < blob.bytes:
                at += os.preadv(handles[blob.file], [memory.data[at:]], blob.offset + at)
            held.append(memory)
    seconds = time.perf_counter() - begin
    for handle in handles.values():
        os.close(handle)
    return seconds


def load(pack: Pack, backend: Backend) -> float:
    store = WeightStore(pack, backend, default_mode(pack))
    keys = [(layer, expert) for layer in range(pack.config.layers) for expert in range(pack.config.experts)]
    begin = time.perf_counter()
    store.load(keys)
    return time.perf_counter() - begin


def measure(folder: Path | None = None) -> Outcome:
    """In pairs, the order reversed every second time. One thread each."""
    pack, backend = Pack.open(folder or whole_models.pack("int4")), make_backend("cpu", threads=1)
    nbytes = sum(blob.bytes for name, blob in pack.manifest.blobs.items() if ".experts." in name)
    plain, loaded = list[float](), list[float]()
    read_plainly(pack, backend)  # brings the files into the page cache
    for index in range(ROUNDS):
        arms = [(read_plainly, plain), (load, loaded)]
        for arm, into in arms if index % 2 == 0 else arms[::-1]:
            into.append(arm(pack, backend))
    backend.close()
    ratio = statistics.median(a / b for a, b in zip(plain, loaded, strict=True))
    speeds = [sorted(nbytes / seconds / 1e9 for seconds in arm) for arm in (loaded, plain)]
    ours, theirs = (f"{statistics.median(arm):.1f} [{arm[0]:.1f}-{arm[-1]:.1f}] GB/s" for arm in speeds)
    return Outcome(f"{ratio:.0%}: {ours}, checksums compared", ratio >= 0.8, f"plain read {theirs}")
