"""The promise, swept: the same requests give the same receipts under every deployment, batch, instruction path.

A cell is one run of the probe request (and, in a crowd, of its 15 mates) under one choice of every axis; its
digests are the receipts of every token. The oracle of a (model, mode) is `--workers 0`, alone, one chunk, one
thread, the best path. Cells are drawn by a seed and grouped by deployment, since starting one costs seconds.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.table import Outcome
from colibri.coordinator.decoder import DecoderStack
from colibri.coordinator.engine import Engine, EngineOptions
from colibri.coordinator.request import GenerationRequest
from colibri.deadline import Deadline
from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.pinning import PinningOptions
from colibri.deployment.running import Deployment
from colibri.generation import Tokens
from colibri.kernels.api import SamplingParams
from colibri.kernels.cpu.backend import supported_isas
from colibri.models.demo_model import build_demo_model
from colibri.models.home import colibri_home
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.transport.link import LinkKind

MATES = 15
WHOLE = 512
TINY = RandomMixtral(
    hidden=64, ffn=96, layers=3, experts=4, heads=4, kv_heads=2, vocab=400, max_positions=512
)
MODELS = (
    TINY,
    replace(
        TINY,
        hidden=80,
        ffn=97,
        experts=8,
        top_k=3,
        heads=5,
        kv_heads=1,
        head_dim=24,
        sliding_window=20,
        seed=1,
    ),
    replace(TINY, hidden=48, ffn=64, experts=16, top_k=4, heads=6, kv_heads=3, tied=True, seed=2),
)


@dataclass(frozen=True, slots=True)
class Place:
    """What starting a deployment fixes. transport: gRPC over 'unix' or 'tcp', or 'shared' memory."""

    model: int
    mode: str
    workers: int
    transport: str
    threads: int
    isa: str


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine on a running deployment fixes."""

    crowd: bool
    chunk: int
    page: int


@dataclass(frozen=True, slots=True)
class Sizes:
    """prompt: tokens of the probe; new: tokens of each answer."""

    vocab: int
    prompt: int
    new: int


def draw_cells(
    seed: int, models: int, places: int, loads: int, workers: Sequence[int], isas: Sequence[str]
) -> list[tuple[Place, list[Load]]]:
    """`places` deployments with `loads` engines each. Each axis uses all its values about equally."""
    rng = random.Random(seed)

    def cycle(values: Sequence[object]) -> Iterator[object]:
        while True:
            yield from rng.sample(list(values), len(values))

    axes = [
        cycle(v) for v in (range(models), ("fp32", "bf16"), workers, ("unix", "tcp", "shared"), (1, 2), isas)
    ]
    all_loads = [Load(*v) for v in itertools.product((False, True), (WHOLE, 1, 7, 64), (8, 16, 64))]
    drawn = [Place(*(next(axis) for axis in axes)) for _ in range(places)]  # type: ignore[arg-type]
    return [(place, rng.sample(all_loads, loads)) for place in drawn]


@contextmanager
def deployed(model: Path, place: Place) -> Iterator[Deployment]:
    """The environment variable reaches the workers, too."""
    before, cpus = os.environ.get("COLIBRI_ISA"), os.sched_getaffinity(0)
    os.environ["COLIBRI_ISA"] = place.isa
    try:
        shared = place.transport == "shared"
        options = DeploymentOptions(
            model,
            place.workers,
            compute_mode=place.mode,
            threads=place.threads,
            transport="unix" if shared else place.transport,
            link=LinkKind.SHARED_MEMORY if shared else LinkKind.GRPC,
            pinning=PinningOptions(share=True),
        )
        with assemble(options, lambda text: None) as deployment:
            yield deployment
    finally:
        os.sched_setaffinity(0, cpus)
        if before is None:
            del os.environ["COLIBRI_ISA"]
        else:
            os.environ["COLIBRI_ISA"] = before


def requests(sizes: Sizes) -> list[GenerationRequest]:
    """The probe first, then its mates: greedy and sampled ones, short and long prompts."""
    rng = np.random.Generator(np.random.SFC64(sizes.vocab))
    out = []
    for index in range(MATES + 1):
        length = sizes.prompt if index == 0 else int(rng.integers(1, sizes.prompt))
        sampling = SamplingParams() if index % 3 == 1 else SamplingParams(0.9, 50, 0.95, seed=1000 + index)
        out.append(
            GenerationRequest(
                request_id=f"r{index}",
                prompt_ids=rng.integers(3, sizes.vocab, length).astype(np.uint32),
                sampling=sampling,
                max_tokens=sizes.new,
                stop_ids=frozenset(),
                resumed_ids=np.zeros(0, np.uint32),
                receipt=0,
                priority=0,
                deadline=Deadline(),
            )
        )
    return out


def receipts(deployment: Deployment, load: Load, wanted: Sequence[GenerationRequest]) -> list[list[int]]:
    """Each request's receipts, all submitted at once to a fresh engine."""
    options = EngineOptions(max_batch_rows=WHOLE, prefill_chunk=load.chunk, kv_page=load.page, kv_tokens=8192)
    stack = DecoderStack(deployment.weights, deployment.backend)
    engine = Engine(stack, None, deployment.router, options, numerics=deployment.numerics)
    try:
        handles = [engine.submit(request) for request in wanted]
        return [
            [r for e in handle.events() if isinstance(e, Tokens) for r in e.receipts] for handle in handles
        ]
    finally:
        engine.close()


def sweep(
    models: Sequence[Path], sizes: Sizes, cells: Sequence[tuple[Place, list[Load]]]
) -> tuple[int, int, int, list[str]]:
    """-> (cells, digests compared, digests that differ, what differs)."""
    wanted = requests(sizes)
    oracles: dict[tuple[int, str], list[list[int]]] = {}
    done = compared = 0
    wrong: list[str] = []
    for place, loads in sorted(cells, key=lambda cell: (cell[0].model, cell[0].mode)):
        key = (place.model, place.mode)
        if key not in oracles:
            oracle_place = Place(place.model, place.mode, 0, "unix", 1, supported_isas()[0])
            with deployed(models[place.model], oracle_place) as deployment:
                oracles[key] = [receipts(deployment, Load(False, WHOLE, 16), [one])[0] for one in wanted]
        with deployed(models[place.model], place) as deployment:
            for load in loads:
                chosen = wanted if load.crowd else wanted[:1]
                got, expected = receipts(deployment, load, chosen), oracles[key][: len(chosen)]
                pairs = [
                    (a, b) for g, e in zip(got, expected, strict=True) for a, b in itertools.zip_longest(g, e)
                ]
                differ = sum(a != b for a, b in pairs)
                done, compared = done + 1, compared + len(pairs)
                if differ:
                    wrong.append(f"{place} {load}: {differ} of {len(pairs)}")
                    print(f"   DIFFERS {wrong[-1]}", file=sys.stderr)
    return done, compared, len(wrong), wrong


def measure_tiny(seed: int = 2026, places: int = 40, loads: int = 10) -> Outcome:
    cells = draw_cells(seed, len(MODELS), places, loads, (0, 1, 2, 3, 8), supported_isas())
    with tempfile.TemporaryDirectory() as folder:
        models = [random_mixtral(Path(folder, str(i)), params) for i, params in enumerate(MODELS)]
        done, compared, bad, wrong = sweep(models, Sizes(vocab=400, prompt=90, new=6), cells)
    return Outcome(
        f"{bad} of {done} cells differ ({compared} digests, seed {seed}, {places} deployments)",
        bad == 0 and done >= 400,
        "--workers 0",
        {"wrong": wrong},
    )


def measure_demo(seed: int = 2027, places: int = 10, loads: int = 3) -> Outcome:
    cells = draw_cells(seed, 1, places, loads, (0, 1, 2, 3, 8), supported_isas())
    model = build_demo_model(colibri_home(os.environ))
    done, compared, bad, wrong = sweep([model], Sizes(vocab=49152, prompt=14, new=3), cells)
    return Outcome(
        f"{bad} of {done} cells differ ({compared} digests, seed {seed}, {places} deployments)",
        bad == 0 and done >= 30,
        "--workers 0",
        {"wrong": wrong},
    )
