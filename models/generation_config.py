"""Read a checkpoint's defaults for generation, each with the file it came from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colibri.models.config import MixtralConfig, token_ids, wrong
from colibri.models.dtypes import fp32
from colibri.models.json_file import read_object
from colibri.models.text_names import GENERATION_NAME

_BUILT_IN = "built-in default"
#: Of divisors of logits: smaller ones would overflow. A temperature may be 0, too.
MIN_REPETITION, MAX_REPETITION = 1e-6, 100.0
MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-6, 100.0

_NEUTRAL: Mapping[str, object] = {
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "length_penalty": 1.0,
    "penalty_alpha": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "min_length": 0,
    "min_new_tokens": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": None,
    "sequence_bias": None,
    "stop_strings": None,
}
"""Settings of transformers that change its text and are not implemented, with the value at which they do
nothing.
"""


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What a request gets for options that it leaves out.

    temperature: 0: greedy.
    top_p, top_k, min_p, repetition_penalty: off at 1, 0, 0 and 1.
    max_new_tokens: None: up to the context's end.
    eos: ids that end a text.
    sources: the file of each field, or 'built-in default'.
    ignored: settings of the file that have no effect here, to be shown to the operator.
    """

    temperature: float
    top_p: float
    top_k: int
    max_new_tokens: int | None
    eos: tuple[int, ...]
    sources: Mapping[str, str]
    ignored: tuple[str, ...]
    min_p: float = 0.0
    repetition_penalty: float = 1.0


def load_generation_defaults(folder: Path, config: MixtralConfig) -> GenerationDefaults:
    """Returns the defaults of the checkpoint in `folder`; generation_config.json may be missing.

    As in transformers, temperature, top_p, top_k and min_p count only if `do_sample` is true. Raises
    CheckpointError, naming the field, for a value out of range.
    """
    path = folder / GENERATION_NAME
    return parse_generation_config(read_object(path) if path.exists() else {}, config)


def parse_generation_config(raw: Mapping[str, Any], config: MixtralConfig) -> GenerationDefaults:
    """Does as `load_generation_defaults`, from the object in the file."""
    fields = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "max_new_tokens", "eos")
    sources = dict.fromkeys(fields, _BUILT_IN)

    def taken(field: str, name: str | None = None) -> Any:
        value = raw.get(field)
        if value is not None:
            sources[name or field] = GENERATION_NAME
        return value

    sample = raw.get("do_sample")
    if sample is not None and not isinstance(sample, bool):
        raise wrong("do_sample", "true or false", sample, GENERATION_NAME)
    temperature, top_p, top_k, min_p = 0.0, 1.0, 0, 0.0
    if sample:
        sources["temperature"] = GENERATION_NAME
        temperature = _number("temperature", taken("temperature"), 1.0, 0.0, MAX_TEMPERATURE)
        if temperature != 0:
            _number("temperature", temperature, 1.0, MIN_TEMPERATURE, MAX_TEMPERATURE)
        stated = taken("top_p")
        top_p = _number("top_p", stated, 1.0, 0.0, 1.0)
        if fp32(top_p) == 0:
            raise wrong("top_p", "a number above 0, at most 1", stated, GENERATION_NAME)
        top_k = _count("top_k", taken("top_k"), 0) or 0
        min_p = _number("min_p", taken("min_p"), 0.0, 0.0, 1.0)
    eos = token_ids(taken("eos_token_id", "eos"), "eos_token_id", config.vocab, GENERATION_NAME)
    if raw.get("eos_token_id") is None and config.eos:
        eos, sources["eos"] = config.eos, "config.json"
    return GenerationDefaults(
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        max_new_tokens=_count("max_new_tokens", taken("max_new_tokens"), 1),
        eos=eos,
        sources=sources,
        ignored=tuple(
            name for name, neutral in _NEUTRAL.items() if raw.get(name, neutral) not in (neutral, None)
        ),
        min_p=min_p,
        repetition_penalty=_number(
            "repetition_penalty", taken("repetition_penalty"), 1.0, MIN_REPETITION, MAX_REPETITION
        ),
    )


def _number(field: str, value: object, default: float, low: float, high: float) -> float:
    if value is None:
        return default
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not fp32(low) <= fp32(value) <= fp32(high)
        or math.isnan(value)
    ):
        raise wrong(field, f"a number from {low:g} to {high:g}", value, GENERATION_NAME)
    return float(value)


def _count(field: str, value: object, low: int) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 1 << 31:
        raise wrong(field, f"an integer of at least {low}", value, GENERATION_NAME)
    return value
