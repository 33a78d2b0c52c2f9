"""Measure decode and prefill: rounds of requests with random token ids through a deployment's engine.

The time of each phase is the difference of two snapshots of the engine's counters.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from colibri.coordinator.request import GenerationRequest
from colibri.coordinator.validation.requests import Draws, to_request
from colibri.deadline import Deadline
from colibri.deployment.running import Deployment
from colibri.errors import ColibriError, ConfigError, DeadlineExpired
from colibri.generation import Tokens
from colibri.v1 import generation_pb2 as pb

#: Parts of an engine step, in the order of the computation.
PHASES = ("norm", "qkv", "attention", "o_proj", "moe", "head", "sample", "other")
#: What the MoE layer's share consists of. The workers' figures are sums over all of them.
_ROUTER = ("gate_s", "plan_s", "exchange_s", "merge_s")
_WORKERS = ("worker_compute_s", "worker_queue_s")
#: Longest wait for one round.
_ROUND_S = 600.0
_FIRST_ORDINARY_ID = 3


@dataclass(frozen=True, slots=True)
class Measured:
    """tokens_s: of each round. seconds: phase -> its sum over all rounds. steps: engine steps of all rounds."""

    tokens_s: tuple[float, ...]
    seconds: Mapping[str, float]
    steps: int

    @property
    def median(self) -> float:
        return statistics.median(self.tokens_s)

    def document(self) -> dict[str, object]:
        """For --json. step_ms: mean per engine step; what lies inside moe has a name of its own."""
        return {
            "tokens_s": {
                "median": self.median,
                "min": min(self.tokens_s),
                "max": max(self.tokens_s),
                "stdev": statistics.stdev(self.tokens_s) if len(self.tokens_s) > 1 else 0.0,
                "rounds": list(self.tokens_s),
            },
            "steps": self.steps,
            "step_ms": {name: 1e3 * value / self.steps for name, value in self.seconds.items()},
        }

    def lines(self) -> list[str]:
        """The split for people, in milliseconds per step and per cent of it."""
        total = sum(self.seconds[name] for name in PHASES)
        out = [f"a step   {1e3 * total / self.steps:.3f} ms on average ({self.steps} steps), of it"]
        for name, value in self.seconds.items():
            out.append(f"  {name:<32} {1e3 * value / self.steps:8.3f} ms {100 * value / total:5.1f} %")
        return out


def spread(values: Sequence[float]) -> str:
    """Median [smallest-largest]."""
    return f"{statistics.median(values):.1f} [{min(values):.1f}-{max(values):.1f}]"


def describe(deployment: Deployment) -> dict[str, object]:
    """What was measured, for --json."""
    model = deployment.model
    return {
        "model": model.name,
        "model_hash": model.model_hash(),
        "engine_numerics_id": deployment.numerics.id,
        "isa": deployment.backend.isa,
        "threads": deployment.backend.threads,
        "cpus": len(os.sched_getaffinity(0)),
        "workers": deployment.worker_names,
    }


def headline(deployment: Deployment) -> str:
    expert, workers = deployment.numerics.expert, len(deployment.worker_names)
    return (
        f"{deployment.model.name}, {expert.deployment_mode}, {expert.weight_format} experts, "
        f"{deployment.backend.isa}, "
        f"{workers or 'no'} worker{'' if workers == 1 else 's'}, {os.cpu_count()} CPUs"
    )


def measure_prefill(deployment: Deployment, tokens: int, rounds: int) -> Measured:
    """Measures prompt tokens per second until the first token, one prompt at a time. Raises InvalidInput if it does
    not fit the model or the cache.
    """
    found: list[float] = []
    _round(deployment, [_request(deployment, tokens, 1, "warm-up", 0)])
    before = _counters(deployment)
    for index in range(rounds):
        request = _request(deployment, tokens, 1, f"prefill-{index}", index)
        begin = time.perf_counter()
        (times,), _ = _round(deployment, [request])
        found.append(tokens / (times[0] - begin))
    return _measured(found, [(before, _counters(deployment))])


def measure_decode(deployment: Deployment, prompt: int, new: int, batch: int, rounds: int) -> Measured:
    """Measures tokens per second of `batch` sequences together while all of them decode.

    new: tokens of each after its first.

    Raises ConfigError if that is over too soon to be measured.
    """
    page, held = deployment.engine.options.kv_page, deployment.engine.options.kv_tokens
    needed = batch * page * -(-(prompt + new + 1) // page)
    if needed > held:
        raise ConfigError("--kv-tokens", f"at least {needed}, for {batch} sequences at once", held)
    found: list[float] = []
    windows: list[tuple[dict[str, float], dict[str, float]]] = []
    for index in range(-1, rounds):
        requests = [_request(deployment, prompt, new + 1, f"decode-{index}-{i}", i) for i in range(batch)]
        times, counters = _round(deployment, requests)
        begin, end = max(each[0] for each in times), min(each[-1] for each in times)
        if end <= begin:
            together = "so many that all sequences decode together for a while"
            raise ConfigError("--new-tokens", together, f"{new}, over before the last sequence began")
        tokens = sum(begin < at <= end for each in times for at in each)
        if index >= 0:  # the first warms up
            found.append(tokens / (end - begin))
            windows.append(counters)
    return _measured(found, windows)


def _request(deployment: Deployment, prompt: int, new: int, name: str, seed: int) -> GenerationRequest:
    """Greedy, of random ids; ends by length alone, so that every round computes the same."""
    vocab = deployment.model.config.vocab
    low = min(_FIRST_ORDINARY_ID, vocab - 1)
    ids = np.random.Generator(np.random.SFC64(seed)).integers(low, vocab, prompt).tolist()
    message = pb.GenerateRequest(token_ids=pb.TokenIds(ids=ids))
    message.sampling.temperature = 0
    message.stopping.max_tokens = new
    message.stopping.ignore_eos = True
    draws = Draws(seed=lambda: 0, request_id=lambda: name)
    return to_request(message, deployment.limits, deployment.tokenizer, Deadline(), draws)


def _round(
    deployment: Deployment, requests: Sequence[GenerationRequest]
) -> tuple[list[list[float]], tuple[dict[str, float], dict[str, float]]]:
    """Times of every token of every request, and the counters when all had their first and when one had its last."""
    times: list[list[float]] = [[] for _ in requests]
    failures: list[ColibriError] = []
    started, ended = threading.Semaphore(0), threading.Event()
    handles = [deployment.engine.submit(request) for request in requests]

    def read(index: int) -> None:
        try:
            for event in handles[index].events():
                if isinstance(event, Tokens):
                    if not times[index]:
                        started.release()
                    times[index] += [time.perf_counter()] * len(event.ids)
        except ColibriError as error:
            failures.append(error)
            started.release()
        ended.set()

    readers = [threading.Thread(target=read, args=(index,), daemon=True) for index in range(len(handles))]
    for reader in readers:
        reader.start()
    limit = time.monotonic() + _ROUND_S
    for _ in handles:
        started.acquire(timeout=max(0.0, limit - time.monotonic()))
    before = _counters(deployment)
    ended.wait(max(0.0, limit - time.monotonic()))
    after = _counters(deployment)
    for reader in readers:
        reader.join(max(0.0, limit - time.monotonic()))
    if failures:
        raise failures[0]
    if any(reader.is_alive() for reader in readers):
        raise DeadlineExpired(f"the engine did not end a round within {_ROUND_S:g} s")
    return times, (before, after)


def _counters(deployment: Deployment) -> dict[str, float]:
    stats, routed, exchanged = (
        deployment.engine.stats(),
        deployment.router.times(),
        deployment.router.exchange_times(),
    )
    found = {"steps": float(stats.steps)} | {name: getattr(stats.times, name) for name in PHASES}
    found |= {f"moe: {name[:-2]}": getattr(routed, name) for name in _ROUTER}
    if exchanged is not None:
        found |= {f"moe: {name[:-2]}, all workers": getattr(exchanged, name) for name in _WORKERS}
    return found


def _measured(
    tokens_s: Sequence[float], windows: Sequence[tuple[dict[str, float], dict[str, float]]]
) -> Measured:
    names = windows[0][0]
    sums = {name: sum(after[name] - before[name] for before, after in windows) for name in names}
    steps = max(1, round(sums.pop("steps")))
    return Measured(tuple(tokens_s), sums, steps)
