"""What the users of a plan ask: a pure function of the plan and of the model's vocabulary."""

from __future__ import annotations

from colibri.chaos.plan import LoadSpec
from colibri.client import ModelInfo
from colibri.load.lengths import Fixed
from colibri.load.prompts import RandomIds
from colibri.load.workload import SamplingSpec, Workload, drawn


def workload_of(spec: LoadSpec, model: ModelInfo, seed: int) -> Workload:
    """`spec.distinct` prompts of random ids, then the same again."""
    return Workload(
        RandomIds(model.vocab, model.eos_ids),
        drawn(Fixed(spec.prompt_tokens), Fixed(spec.output_tokens)),
        seed=seed,
        distinct=spec.distinct,
        sampling=SamplingSpec(temperature=spec.temperature),
    )
