"""Counters of the engine: cheap enough to be always on. Benchmarks and metrics read them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace


@dataclass(slots=True)
class PhaseTimes:
    """Seconds spent in each phase, summed over steps.

    norm: includes the residual additions.
    attention: includes RoPE and writing K and V.
    other: the rest of a step (embedding, building and delivering it).
    """

    norm: float = 0.0
    qkv: float = 0.0
    attention: float = 0.0
    o_proj: float = 0.0
    moe: float = 0.0
    head: float = 0.0
    sample: float = 0.0
    other: float = 0.0

    @property
    def total(self) -> float:
        return (
            self.norm
            + self.qkv
            + self.attention
            + self.o_proj
            + self.moe
            + self.head
            + self.sample
            + self.other
        )


@dataclass(slots=True)
class EngineStats:
    """Counts of the engine's thread. Rows are tokens run through the decoder stack; `sampled` are tokens delivered."""

    steps: int = 0
    prefill_rows: int = 0
    decode_rows: int = 0
    sampled: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0
    refused: int = 0
    waiting: int = 0
    running: int = 0
    kv_pages_used: int = 0
    kv_pages: int = 0
    times: PhaseTimes = field(default_factory=PhaseTimes)

    def snapshot(self) -> EngineStats:
        return replace(self, times=replace(self.times))
