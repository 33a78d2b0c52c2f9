"""Log-probabilities of tokens from raw logits (docs/numerics.md, log-probabilities)."""

from __future__ import annotations

import numpy as np

from colibri.generation import TokenLogprobs
from colibri.kernels.api import F32

_BLOCK = 256


def token_logprobs(logits: F32, log_sum_exp: float, token: int, top: int) -> TokenLogprobs:
    """Returns the log-probabilities of a token and of the likeliest ones.

    logits: fp32 [vocab], without NaN.
    log_sum_exp: Backend.log_sum_exp of them.
    top: how many of the likeliest to return.
    """
    return TokenLogprobs(
        _logprob(logits[token], log_sum_exp),
        tuple((each, _logprob(logits[each], log_sum_exp)) for each in likeliest(logits, top)),
    )


def likeliest(logits: F32, count: int) -> list[int]:
    """Returns the ids of the `count` largest logits, largest first, ties to the lower id; all ids if there are no
    more.
    """
    count = min(count, len(logits))
    if count == 0:
        return []
    # The count-th largest of the blocks' maxima: at least so many logits reach it, and few more.
    blocks = len(logits) // _BLOCK
    maxima = logits[: blocks * _BLOCK].reshape(blocks, _BLOCK).max(axis=1) if blocks >= count else logits
    least = np.partition(maxima, len(maxima) - count)[len(maxima) - count]
    candidates = np.flatnonzero(logits >= least)
    order = np.argsort(-logits[candidates], kind="stable")[:count]
    found: list[int] = candidates[order].tolist()
    return found


def _logprob(logit: np.float32, log_sum_exp: float) -> float:
    """Returns the log-probability rounded to fp32, as it is sent."""
    return float(np.float32(float(logit) - log_sum_exp))
