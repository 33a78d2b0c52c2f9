"""Measure speed and quality.

A group of verbs: this module only lists them. What they share is in `bench_model`.
"""

from __future__ import annotations

from collections.abc import Mapping

from colibri.cli.verb import Verb

VERBS: Mapping[str, Verb] = {
    "decode": Verb(
        "Measure decode: tokens per second of each sequence, and where a step's time goes.",
        "colibri.cli.bench_decode",
    ),
    "kernels": Verb("Measure kernels against this machine's limits.", "colibri.cli.bench_kernels"),
    "prefill": Verb(
        "Measure prefill: prompt tokens per second, and where the time goes.", "colibri.cli.bench_prefill"
    ),
    "quality": Verb(
        "Measure quality: perplexity of a checkpoint and of its packs, how far apart they are, who falls into loops.",
        "colibri.cli.bench_quality",
    ),
    "serve": Verb(
        "Measure a server under load: latencies, throughput, goodput, and every answer against an oracle.",
        "colibri.cli.bench_serve",
    ),
}
