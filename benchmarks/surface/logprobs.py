"""Log-probabilities of prompts and answers against transformers, fp32 mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks.core.agreement import peer_logits
from benchmarks.surface.engines import TINY, Answer, answers, ask, deployed, ids
from benchmarks.table import Line, Outcome
from colibri.generation import TokenLogprobs
from colibri.kernels.api import F32
from colibri.models.random_mixtral import RandomMixtral
from colibri.v1 import generation_pb2 as pb

BOUND = 1e-4
TOP = 20
MODELS: Mapping[str, RandomMixtral] = {
    "8 experts, fp32": replace(TINY, dtype="fp32"),
    "sliding window, tied": replace(TINY, dtype="fp32", sliding_window=24, tied=True, seed=22),
    "fp16 weights, top-3": replace(TINY, dtype="fp16", top_k=3, seed=23),
}
_PROMPTS = (1, 2, 40, 150, 500)


def measure() -> Outcome:
    """Every token of five prompts and of their sampled answers, each with the 20 likeliest."""
    worst, values, detail = 0.0, 0, dict[str, object]()
    for name, params in MODELS.items():
        with deployed(params, mode="fp32") as (folder, deployment):
            found: dict[str, tuple[list[int], Answer]] = {}
            for length in _PROMPTS:
                prompt = (
                    np.random.Generator(np.random.SFC64(length)).integers(3, params.vocab, length).tolist()
                )
                message = pb.GenerateRequest(
                    token_ids=ids(prompt),
                    sampling=pb.Sampling(temperature=1.0, seed=length, repetition_penalty=1.3, top_k=100),
                    stopping=pb.Stopping(max_tokens=32, ignore_eos=True),
                    echo=True,
                    logprobs=TOP,
                )
                [answer] = answers(deployment.engine, ask(deployment, message))
                found[str(length)] = (prompt, answer)
            theirs = peer_logits(folder, {key: prompt + a.ids for key, (prompt, a) in found.items()})
        errors = [
            abs(ours - expected)
            for key, (prompt, answer) in found.items()
            for ours, expected in _pairs(prompt, answer, _log_softmax(theirs[key]))
        ]
        detail[name] = {"values": len(errors), "largest": max(errors)}
        worst, values = max(worst, *errors), values + len(errors)
    return Outcome(
        f"largest difference {worst:.1e} over {values:,} values, {len(MODELS)} models",
        worst <= BOUND,
        "transformers fp32",
        detail,
    )


def _log_softmax(logits: F32) -> NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    found: NDArray[np.float64] = x - np.log(np.exp(x).sum(axis=1, keepdims=True))
    return found


def _pairs(prompt: list[int], answer: Answer, truth: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Ours and theirs: of each token behind the first, and of the ids that we call the likeliest."""
    if answer.prompt is None:
        raise ValueError("echo brought no prompt")
    scored: list[TokenLogprobs | None] = [*answer.prompt.logprobs, *answer.logprobs]
    tokens = prompt + answer.ids
    if len(scored) != len(tokens):
        raise ValueError(f"{len(scored)} log-probabilities of {len(tokens)} tokens")
    pairs = []
    for at, each in enumerate(scored[1:]):
        if each is None or len(each.top) != TOP:
            raise ValueError(f"token {at + 1} lacks log-probabilities")
        pairs.append((each.logprob, float(truth[at, tokens[at + 1]])))
        pairs += [(value, float(truth[at, token])) for token, value in each.top]
        largest = np.sort(truth[at])[::-1][:TOP]  # whichever ids they are: the values must be these
        pairs += [(value, float(best)) for (_, value), best in zip(each.top, largest, strict=True)]
    return pairs


def lines() -> list[Line]:
    return [Line("logprobs", "log-probabilities against transformers, fp32 mode", "within 1e-4", measure)]
