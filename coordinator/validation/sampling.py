"""Read how tokens are chosen: the fields of Sampling, else the checkpoint's defaults."""

from __future__ import annotations

from collections.abc import Callable

from colibri.coordinator.penalties import Penalties
from colibri.coordinator.validation.fields import in_range
from colibri.errors import InvalidInput
from colibri.kernels.api import SamplingParams
from colibri.models.dtypes import fp32
from colibri.models.generation_config import (
    MAX_REPETITION,
    MAX_TEMPERATURE,
    MIN_REPETITION,
    MIN_TEMPERATURE,
    GenerationDefaults,
)
from colibri.v1 import generation_pb2 as pb


def sampling_params(
    sampling: pb.Sampling,
    defaults: GenerationDefaults,
    vocab: int,
    draw_seed: Callable[[], int],
    *,
    choice: int,
    resuming: bool,
) -> SamplingParams:
    """Returns the sampling of a request, as fp32 values, also for the checkpoint's defaults. Raises InvalidInput."""
    temperature = sampling.temperature if sampling.HasField("temperature") else fp32(defaults.temperature)
    in_range("sampling.temperature", temperature, MIN_TEMPERATURE, MAX_TEMPERATURE, or_zero=True)
    top_p = sampling.top_p if sampling.HasField("top_p") else fp32(defaults.top_p)
    if not 0 < top_p <= 1:
        raise InvalidInput("sampling.top_p", "above 0, at most 1", top_p)
    # A checkpoint's top_k may exceed a small vocabulary, where it means all of it; a client's is a mistake.
    top_k = sampling.top_k if sampling.HasField("top_k") else min(defaults.top_k, vocab)
    if top_k > vocab:
        raise InvalidInput("sampling.top_k", f"0 to {vocab} (the vocabulary)", top_k)
    min_p = sampling.min_p if sampling.HasField("min_p") else fp32(defaults.min_p)
    in_range("sampling.min_p", min_p, 0, 1)
    if resuming and temperature > 0 and not sampling.HasField("seed"):
        raise InvalidInput("sampling.seed", "the seed of the answer that is resumed", "none")
    seed = sampling.seed if sampling.HasField("seed") else draw_seed()
    return SamplingParams(temperature, top_k, top_p, seed, choice, min_p)


def penalties(sampling: pb.Sampling, defaults: GenerationDefaults) -> Penalties:
    """Raises InvalidInput."""
    repetition = (
        sampling.repetition_penalty
        if sampling.HasField("repetition_penalty")
        else fp32(defaults.repetition_penalty)
    )
    return Penalties(
        in_range("sampling.repetition_penalty", repetition, MIN_REPETITION, MAX_REPETITION),
        in_range("sampling.presence_penalty", sampling.presence_penalty, -2, 2),
        in_range("sampling.frequency_penalty", sampling.frequency_penalty, -2, 2),
    )
