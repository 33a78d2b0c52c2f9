"""Make the requests of a plan's users: a pure function of the plan and of the model's vocabulary."""

from __future__ import annotations

from colibri.bench.chaos.plan import LoadSpec
from colibri.bench.load.lengths import Fixed
from colibri.bench.load.prompts import RandomIds
from colibri.bench.load.workload import SamplingSpec, Workload, drawn
from colibri.client import ModelInfo


def workload_of(spec: LoadSpec, model: ModelInfo, seed: int) -> Workload:
    """Returns `spec.distinct` prompts of random ids, which then repeat."""
    return Workload(
        RandomIds(model.vocab, model.eos_ids),
        drawn(Fixed(spec.prompt_tokens), Fixed(spec.output_tokens)),
        seed=seed,
        distinct=spec.distinct,
        sampling=SamplingSpec(temperature=spec.temperature),
    )
