"""Weights that a bad disk has changed: every byte noticed by file and tensor before a token, at no cost in loading."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.hardening.installed import BEFORE, package_of, run_python
from benchmarks.table import Line, Outcome
from colibri.kernels.api import Backend
from colibri.kernels.factory import make_backend
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from tests.conftest import TINY
from tests.support.flips import Place, flipped, header_places, places
from tests.support.loads import deployment, refusals
from tests.support.serving import serving

PLACES, HEADERS, COPIES = 200, 40, 20
#: Of each way to deploy, over real processes.
REAL = 3
#: Workers and replicas.
MODES = ((0, 1), (2, 1), (2, 2))
ROUNDS, LOADS = 6, 6
LARGEST_RATIO = 1.1
#: Experts of 12 MiB, 400 MiB together.
LARGE = RandomMixtral(
    hidden=1024, ffn=2048, layers=4, experts=8, top_k=2, heads=8, kv_heads=4, vocab=4096, max_positions=512, seed=3
)  # fmt: skip
_NOTICED_S = 180.0

_LOAD = """
import json, sys, time
from pathlib import Path
import colibri
from colibri.coordinator.decoder_weights import DecoderWeights
from colibri.expert_service.store import WeightStore
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from colibri.models.model import open_model
assert str(Path(colibri.__file__).resolve()).startswith(sys.argv[1]), colibri.__file__
backend, mode, times = make_backend("cpu", threads=1), ComputeMode.BF16, []
for _ in range(int(sys.argv[3])):
    wall, cpu = time.perf_counter(), time.process_time()
    model = open_model(Path(sys.argv[2]))
    DecoderWeights.load(model, backend, mode)
    store = WeightStore(model, backend, mode)
    store.load([(la, e) for la in range(model.config.layers) for e in range(model.config.experts)])
    times.append((time.perf_counter() - wall, time.process_time() - cpu))
    del store
print(json.dumps(times))
"""


def noticed() -> Outcome:
    """All of it."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        model = random_mixtral(root / "model", replace(TINY, layers=2))
        backend = make_backend("cpu", threads=1)
        try:
            first = refusals(model, backend, deployment(0, 1))
            missed = [*first, *_missed(model, backend)]
            heads = _missed_headers(model, backend)
            wrongly = _refused_wrongly(model, root, backend)
        finally:
            backend.close()
        real, real_missed = _real(model, root)
        wall, cpu = _load_ratios(root)
    tried = PLACES * len(MODES)
    value = (
        f"{tried - len(missed)} of {tried} bytes of tensors ({PLACES} in each of {len(MODES)} ways to deploy, by the "
        f"loaders in one process) and {real - len(real_missed)} of {real} by real serve (workers killed, back over the "
        f"changed file) and generate, {HEADERS - len(heads)} of {HEADERS} bytes of headers; {len(wrongly)} of {COPIES} "
        f"touched copies refused; load {cpu:.3f}x in CPU time, {wall:.3f}x in wall time"
    )
    met = not (missed or heads or wrongly or real_missed) and cpu <= LARGEST_RATIO
    detail: dict[str, object] = {
        "missed": missed[:20],
        "headers": heads[:20],
        "refused wrongly": wrongly,
        "real": real_missed,
        "load": {"wall": wall, "cpu": cpu},
    }
    return Outcome(value, met, f"load of {BEFORE}, alternated: 1", detail)


def _missed(model: Path, backend: Backend) -> list[str]:
    found = []
    for workers, replicas in MODES:
        loads = deployment(workers, replicas)
        for number, place in enumerate(places(model, PLACES, seed=replicas + 10 * workers)):
            with flipped(place, bit=number % 8):
                said = refusals(model, backend, loads)
            holders = replicas if "experts" in place.tensor else 1
            if len(said) != holders or not all(f"{place.path}: {place.tensor}" in text for text in said):
                found.append(f"{place}, {workers} workers, {replicas} replicas: {said}")
    return found


def _missed_headers(model: Path, backend: Backend) -> list[str]:
    found = []
    for number, place in enumerate(header_places(model, HEADERS, seed=5)):
        with flipped(place, bit=number % 8):
            if not refusals(model, backend, deployment(0, 1)):
                found.append(str(place))
    return found


def _refused_wrongly(model: Path, root: Path, backend: Backend) -> list[str]:
    found = []
    for number in range(COPIES):
        copy = root / f"copy{number}"
        shutil.copytree(model, copy)
        for path in copy.iterdir():
            os.utime(path, (number, number))
        found += refusals(copy, backend, deployment(*MODES[number % len(MODES)]))
        shutil.rmtree(copy)
    return found


def _real(model: Path, root: Path) -> tuple[int, list[str]]:
    """How many were tried over real processes, and what was missed."""
    missed = []
    for replicas in (1, 2):
        folder = root / f"serve{replicas}"
        folder.mkdir()
        chosen = [place for place in places(model, 400, seed=70 + replicas) if "experts" in place.tensor][
            :REAL
        ]
        with serving(model, folder, "--workers=2", f"--replicas={replicas}") as server:
            for place in chosen:
                with flipped(place):
                    for pid in server.workers():
                        os.kill(pid, signal.SIGKILL)
                    if not _told(server.err, place):
                        missed.append(f"serve --replicas {replicas}: {place}")
            server.end(signal.SIGTERM)
    for place in places(model, REAL, seed=80):
        command = [sys.executable, "-m", "colibri.cli.main", "generate", str(model), "--workers=0"]
        with flipped(place):
            done = subprocess.run(
                [*command, "--prompt-ids=1,2,3"],
                capture_output=True,
                text=True,
                timeout=_NOTICED_S,
                check=False,
            )
        if done.returncode != 1 or done.stdout or f"{place.path}: {place.tensor}" not in done.stderr:
            missed.append(f"generate --workers 0: {place}: {done.returncode}: {done.stderr}")
    return 3 * REAL, missed


def _told(log: Path, place: Place) -> bool:
    until = time.monotonic() + _NOTICED_S
    while time.monotonic() < until:
        if f"{place.path.name}: {place.tensor}" in log.read_text():
            return True
        time.sleep(0.2)
    return False


def _load_ratios(root: Path) -> tuple[float, float]:
    """Quickest load now over quickest load before, in wall and in CPU time."""
    model = random_mixtral(root / "large", LARGE)
    packages = [package_of(BEFORE, root / "before"), package_of(None, root / "now")]
    best = [(float("inf"), float("inf"))] * 2
    for number in range(ROUNDS):
        for index in (0, 1) if number % 2 else (1, 0):
            text = run_python(packages[index], _LOAD, str(root), str(model), str(LOADS))
            times: Sequence[Sequence[float]] = json.loads(text)
            quickest = [min(each) for each in zip(*times, best[index], strict=True)]
            best[index] = (quickest[0], quickest[1])
    return best[1][0] / best[0][0], best[1][1] / best[0][1]


def lines() -> list[Line]:
    return [
        Line(
            "flipped-bytes",
            "any byte of a tensor changed after a first good start, size and times put back",
            f"{PLACES} of {PLACES} noticed by file and tensor, none refused wrongly, load at most {LARGEST_RATIO}x",
            noticed,
        )
    ]
