"""Fifty states of workers, forced by the workers' own calls with the deployment's secret, under requests."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.surface.engines import Answer, answers, ask, ids
from benchmarks.table import Line, Outcome
from colibri.cluster.experts.holders import ExpertId, held_by, holders_of
from colibri.cluster.workers.expert_calls import ask_status, load_experts, retire_experts
from colibri.coordinator.engine import EngineOptions
from colibri.deadline import Deadline
from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.pinning import PinningOptions
from colibri.deployment.running import Deployment
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.placement import WorkerEndpoint
from colibri.v1 import generation_pb2 as pb

#: Experts of 6 MiB, so that loading one takes longer than telling of it.
MODEL = RandomMixtral(
    hidden=512,
    ffn=1024,
    layers=4,
    experts=16,
    top_k=2,
    heads=8,
    kv_heads=4,
    vocab=512,
    max_positions=512,
    seed=21,
)
STATES, WORKERS, USERS, TOKENS = 50, 3, 3, 16
#: What the manager's own looks may take where little or nothing is missing, seconds.
FLOOR_S = 1.0
_FAR = 1 << 19
_WAIT_S = 120.0
_POLL_S = 0.005


@dataclass(slots=True)
class Users:
    """Each asks the same again and again, and compares."""

    deployment: Deployment
    expected: Sequence[Answer]
    done: int = 0
    wrong: int = 0
    errors: list[str] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)

    def ask(self, number: int) -> None:
        while not self.stop.is_set():
            try:
                [found] = answers(self.deployment.engine, ask(self.deployment, _message(number)))
            except Exception as error:
                self.errors.append(f"{error}")
                continue
            if (found.ids, found.receipts) == (self.expected[number].ids, self.expected[number].receipts):
                self.done += 1
            else:
                self.wrong += 1


@dataclass(frozen=True, slots=True)
class State:
    """A state to force on a worker: experts to drop, epochs to retire, experts to load."""

    worker: str
    gone: tuple[ExpertId, ...]
    epochs: bool
    extra: tuple[ExpertId, ...]


def _message(number: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        token_ids=ids([1, *range(20 + 3 * number, 44 + 3 * number)]),
        sampling=pb.Sampling(temperature=0.0),
        stopping=pb.Stopping(max_tokens=TOKENS, ignore_eos=True),
    )


def _options(model: Path, workers: int) -> DeploymentOptions:
    return DeploymentOptions(
        model,
        workers,
        replicas=2 if workers else 1,
        engine=EngineOptions(kv_tokens=4096),
        pinning=PinningOptions(share=True),
    )


def measure() -> Outcome:
    with tempfile.TemporaryDirectory() as name:
        model = random_mixtral(Path(name, "model"), MODEL)
        with assemble(_options(model, 0), lambda text: None) as oracle:
            expected = [answers(oracle.engine, ask(oracle, _message(n)))[0] for n in range(USERS)]
        with assemble(_options(model, WORKERS), lambda text: None) as deployment:
            users = Users(deployment, expected)
            threads = [threading.Thread(target=users.ask, args=(n,), daemon=True) for n in range(USERS)]
            for thread in threads:
                thread.start()
            try:
                one_s, each_s = _load_times(deployment)
                taken = [_force(deployment, state) for state in _states(deployment)]
            finally:
                users.stop.set()
                for thread in threads:
                    thread.join(_WAIT_S)
            deaths = 0 if deployment.launcher is None else sum(s.deaths for s in deployment.launcher.status())
    ratios = []
    late = 0
    for state, seconds in taken:
        load_s = one_s + each_s * max(0, len(state.gone) - 1) if state.gone else 0.0
        late += seconds > max(2 * load_s, FLOOR_S)
        if state.gone:
            ratios.append(seconds / load_s)
    slowest = max(seconds for _, seconds in taken)
    met = not (late or users.wrong or users.errors)
    return Outcome(
        f"{len(taken) - late} of {len(taken)} in time; with experts missing {median(ratios):.2f} loads (median), "
        f"{max(ratios):.2f} at most; slowest {slowest:.2f} s; {users.done} answers, {len(users.errors)} failed, "
        f"{users.wrong} wrong; {deaths} restarts",
        met,
        f"one expert loads in {1000 * one_s:.0f} ms, each further one in {1000 * each_s:.0f} ms, beside the same users",
        {"seconds": [round(seconds, 3) for _, seconds in taken], "errors": users.errors[:5]},
    )


def _states(deployment: Deployment) -> list[State]:
    draw = random.Random(13)
    found = []
    holders = holders_of(deployment.directory.current().placement)
    every = [(layer, expert) for layer in range(MODEL.layers) for expert in range(MODEL.experts)]
    for _ in range(STATES):
        worker = f"w{draw.randrange(WORKERS)}"
        own = sorted(held_by(holders, worker))
        others = sorted(set(every) - set(own))
        gone = draw.choice([0, 1, len(own) // 2, len(own), draw.randrange(len(own))])
        extra = draw.choice([0, 0, draw.randrange(1, len(others))])
        epochs = draw.random() < 0.5 or not (gone or extra)
        found.append(State(worker, tuple(draw.sample(own, gone)), epochs, tuple(draw.sample(others, extra))))
    return found


def _force(deployment: Deployment, state: State) -> tuple[State, float]:
    """Seconds until the worker says again that it holds and serves what is wanted."""
    endpoint = deployment.directory.current().endpoints[state.worker]
    if state.extra:
        load_experts(endpoint, state.extra, 1, Deadline.after(_WAIT_S), lambda step: None)
    begun = time.monotonic()
    retire_experts(endpoint, _FAR if state.epochs else 0, state.gone, 5.0)
    while not _as_wanted(deployment, state.worker):
        if time.monotonic() - begun > _WAIT_S:
            raise TimeoutError(f"{state} is still there")
        time.sleep(_POLL_S)
    return state, time.monotonic() - begun


def _as_wanted(deployment: Deployment, worker: str) -> bool:
    membership = deployment.directory.current()
    endpoint = membership.endpoints.get(worker)
    if endpoint is None:
        return False
    said = ask_status(endpoint.target, worker, 5.0, security=endpoint.security, experts=True)
    wanted = held_by(holders_of(membership.placement), worker)
    return (
        frozenset((item.layer, item.expert) for item in said.held) == wanted
        and said.epoch_min <= membership.placement.epoch
    )


def _load_times(deployment: Deployment) -> tuple[float, float]:
    """Returns the seconds that a worker takes to load one expert, and each further one in the same call.

    Loads experts that are not its own; the deployment drops them again soon after.
    """
    ones, each = [], []
    holders = holders_of(deployment.directory.current().placement)
    every = {(layer, expert) for layer in range(MODEL.layers) for expert in range(MODEL.experts)}
    for worker, endpoint in list(deployment.directory.current().endpoints.items()) * 3:
        others = sorted(every - held_by(holders, worker))
        one_s = _timed_load(endpoint, others[:1])
        rest_s = _timed_load(endpoint, others[1:])
        ones.append(one_s)
        each.append(max(0.0, rest_s - one_s) / (len(others) - 2))
        until = time.monotonic() + _WAIT_S
        while not _as_wanted(deployment, worker) and time.monotonic() < until:
            time.sleep(_POLL_S)
    return median(ones), median(each)


def _timed_load(endpoint: WorkerEndpoint, experts: Sequence[ExpertId]) -> float:
    begun = time.monotonic()
    load_experts(endpoint, experts, 1, Deadline.after(_WAIT_S), lambda step: None)
    return time.monotonic() - begun


def lines() -> list[Line]:
    return [
        Line(
            "forced-states",
            f"{STATES} random states forced on workers by their own calls, replicas 2, {USERS} users",
            f"wanted state back within 2x a load of what is missing ({FLOOR_S:g} s where that is less), 0 failed, "
            "0 wrong",
            measure,
        )
    ]
