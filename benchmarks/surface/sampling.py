"""Draws against the exact distribution, option by option, and the same seed in different batches."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.surface.engines import Answer, answers, ask, deployed, gather, ids
from benchmarks.table import Line, Outcome
from colibri.coordinator.penalties import LogitShaper, Penalties
from colibri.kernels.api import F32, SamplingParams
from colibri.kernels.factory import make_backend
from colibri.v1 import generation_pb2 as pb

DRAWS = 20_000
VOCAB = 64
_PROMPT = np.array([1, 5, 9, 9, 30], dtype=np.uint32)
_ANSWER = np.array([7, 9, 7, 7, 40], dtype=np.uint32)
_STOP_IDS = (2, 3)
#: Of the chi-squared statistic; seeds are fixed, so what passes once passes always.
_QUANTILE_Z = 3.0902  # 1 - 1e-3 of the normal distribution


@dataclass(frozen=True, slots=True)
class Option:
    """What a request says; min_tokens counts beyond the answer's five tokens."""

    params: SamplingParams
    penalties: Penalties = Penalties()  # noqa: RUF009 - frozen
    min_tokens: int = 0


OPTIONS: Mapping[str, Option] = {
    "temperature 1": Option(SamplingParams(1.0, seed=11)),
    "temperature 0.6": Option(SamplingParams(0.6, seed=12)),
    "temperature 2.5": Option(SamplingParams(2.5, seed=13)),
    "top-k 12": Option(SamplingParams(1.0, top_k=12, seed=14)),
    "top-p 0.8": Option(SamplingParams(1.0, top_p=0.8, seed=15)),
    "min-p 0.1": Option(SamplingParams(1.0, min_p=0.1, seed=16)),
    "repetition 1.5": Option(SamplingParams(1.0, seed=17), Penalties(repetition=1.5)),
    "presence 1.2": Option(SamplingParams(1.0, seed=18), Penalties(presence=1.2)),
    "frequency -0.5": Option(SamplingParams(1.0, seed=19), Penalties(frequency=-0.5)),
    "min_tokens": Option(SamplingParams(1.0, seed=20), min_tokens=6),
    "choice 3": Option(SamplingParams(1.0, seed=11, choice=3)),
    "all together": Option(
        SamplingParams(0.9, top_k=30, top_p=0.95, seed=21, choice=1, min_p=0.02), Penalties(1.2, 0.3, 0.2), 6
    ),
}


def exact(logits: F32, option: Option) -> NDArray[np.float64]:
    """The distribution [vocab] that the option means, in float64 and from its words alone."""
    z = logits.astype(np.float64)
    penalties, params = option.penalties, option.params
    for token in {*_PROMPT.tolist(), *_ANSWER.tolist()}:
        z[token] = z[token] / penalties.repetition if z[token] > 0 else z[token] * penalties.repetition
    for token, count in Counter(_ANSWER.tolist()).items():
        z[token] -= penalties.frequency * count + penalties.presence
    if len(_ANSWER) < option.min_tokens:
        z[list(_STOP_IDS)] = -np.inf
    order = np.argsort(-z, kind="stable")
    p = np.exp((z - z.max()) / params.temperature)
    keep = order[: params.top_k or len(order)]
    reached = np.cumsum(p[keep]) >= params.top_p * p[keep].sum()
    keep = keep[: int(np.argmax(reached)) + 1] if params.top_p < 1 else keep
    keep = keep[p[keep] >= params.min_p * p.max()]
    found = np.zeros(len(z))
    found[keep] = p[keep] / p[keep].sum()
    return found


def chi_squared(counts: NDArray[np.int64], p: NDArray[np.float64]) -> tuple[float, float]:
    """The statistic and its bound; ids expected fewer than five times count as one."""
    expected = p * counts.sum()
    rare = expected < 5
    pooled = [(float(c), float(e)) for c, e in zip(counts[~rare], expected[~rare], strict=True)]
    if expected[rare].sum() > 0:
        pooled.append((float(counts[rare].sum()), float(expected[rare].sum())))
    freedom = max(1, len(pooled) - 1)
    bound = freedom * (1 - 2 / (9 * freedom) + _QUANTILE_Z * math.sqrt(2 / (9 * freedom))) ** 3
    return sum((c - e) ** 2 / e for c, e in pooled), bound


def measure_draws() -> Outcome:
    """What the engine does for each token, 20,000 times over: shaping, then the sampler."""
    logits = (np.random.Generator(np.random.SFC64(3)).standard_normal(VOCAB) * 2).astype(np.float32)
    backend = make_backend("cpu", threads=1)
    detail: dict[str, object] = {}
    passed = 0
    for name, option in OPTIONS.items():
        shaper = LogitShaper(VOCAB, option.penalties, _PROMPT, _ANSWER, option.min_tokens, _STOP_IDS)
        shaped = shaper.shaped(logits)
        drawn = [backend.sample(shaped, option.params, index) for index in range(DRAWS)]
        counts = np.bincount(drawn, minlength=VOCAB)
        p = exact(logits, option)
        statistic, bound = chi_squared(counts, p)
        good = statistic <= bound and not counts[p == 0].any()
        passed += good
        detail[name] = {"chi_squared": statistic, "bound": bound, "ids": int((p > 0).sum()), "passed": good}
    backend.close()
    return Outcome(
        f"{passed} of {len(OPTIONS)} options pass, {DRAWS:,} draws each", passed == len(OPTIONS), "", detail
    )


def _request(at: int) -> pb.GenerateRequest:
    rng = np.random.Generator(np.random.SFC64(100 + at))
    return pb.GenerateRequest(
        token_ids=ids(rng.integers(3, 500, 5 + 9 * (at % 7)).tolist()),
        sampling=pb.Sampling(
            temperature=0.7 + 0.2 * (at % 4),
            top_p=0.95,
            top_k=(0, 50)[at % 2],
            min_p=(0.0, 0.05)[at % 2],
            seed=at,
            repetition_penalty=(1.0, 1.2)[at % 2],
            frequency_penalty=(0.0, 0.3)[at // 2 % 2],
        ),
        stopping=pb.Stopping(max_tokens=24, min_tokens=4, ignore_eos=True, stop=["never said"] * (at % 2)),
        n=1 + at % 3,
        logprobs=at % 3,
    )


def measure_batches() -> Outcome:
    """Each request alone, with all others at once, and with them in another order; every choice compared."""

    def told(found: Sequence[Answer]) -> list[object]:
        return [
            (answer.ids, answer.receipts, answer.text, answer.logprobs, answer.finished) for answer in found
        ]

    with deployed() as (_, deployment):
        engine = deployment.engine
        messages = [_request(at) for at in range(16)]
        alone = [told(answers(engine, ask(deployment, message))) for message in messages]
        different = 0
        orders = [range(16), range(15, -1, -1), [at * 5 % 16 for at in range(16)]]
        for order in orders:
            handles = {at: engine.submit(ask(deployment, messages[at])) for at in order}
            for at, handle in handles.items():
                found = told(gather(handle.events()))
                different += sum(one != other for one, other in zip(found, alone[at], strict=True))
    choices = sum(message.n for message in messages) * len(orders)
    return Outcome(f"{different} of {choices} answers differ", different == 0)


def lines() -> list[Line]:
    return [
        Line(
            "sampling",
            "20,000 draws against the exact distribution",
            "chi-squared passes, each option",
            measure_draws,
        ),
        Line("sampling-batch", "the same seed in any batch", "0 answers differ", measure_batches),
    ]
