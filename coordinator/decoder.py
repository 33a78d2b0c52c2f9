"""The decoder stack: embedding, layers, head, over one step's rows (docs/numerics.md gives every bit).

The residual stream is fp32 throughout; rounding in bf16 mode happens inside the kernels, at the places the
contract names.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from colibri.coordinator.decoder_weights import DecoderWeights
from colibri.coordinator.kv_cache import KvCache
from colibri.coordinator.moe_layer import MoeLayer
from colibri.coordinator.stats import PhaseTimes
from colibri.coordinator.step_batch import StepBatch
from colibri.errors import ColibriError
from colibri.kernels.api import F32, Array, Backend


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step computed.

    logits: fp32 [n, vocab].
    sequences: [n], the step's sequence of each.
    failed: sequence -> why it has none.
    scored_rows, scored_sequences: [m, hidden] and [m], the head's input for a prompt's log-probabilities.
    """

    logits: F32
    sequences: list[int]
    failed: Mapping[int, ColibriError]
    scored_rows: Array
    scored_sequences: list[int]


class DecoderStack:
    """A model's weights bound to a backend. Only the engine's thread calls it."""

    def __init__(
        self, weights: DecoderWeights, backend: Backend, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.weights = weights
        self.config = weights.config
        self.mode = weights.mode
        self.backend = backend
        self._clock = clock
        self._no_logits = np.zeros((0, weights.config.vocab), dtype=np.float32)
        self._no_rows: Array = np.zeros((0, weights.config.hidden), dtype=np.float32)

    def head(self, rows: Array) -> F32:
        """Returns the logits [rows, vocab] of `StepOutput.scored_rows`."""
        return self.backend.linear(rows, self.weights.head)

    def forward(self, batch: StepBatch, cache: KvCache, moe: MoeLayer, times: PhaseTimes) -> StepOutput:
        """Runs the rows through all layers, writes K and V into `cache`, and adds each phase's time to `times`.

        If the MoE layer fails a row, its whole sequence leaves the step. Every other row goes on, and by batch
        invariance with the same bits. Raises what the backend and the MoE layer raise.
        """
        backend, mode, clock, weights = self.backend, self.mode, self._clock, self.weights
        rms_norm, linear, add = backend.rms_norm, backend.linear, backend.add_inplace
        rope_and_store, attention, run_moe = backend.rope_and_store, backend.attention, moe.forward
        rope, eps, heads, window = (
            weights.rope,
            self.config.rms_eps,
            self.config.heads,
            self.config.sliding_window,
        )
        failed: dict[int, ColibriError] = {}
        norm_s = qkv_s = attention_s = o_proj_s = moe_s = 0.0

        begun = clock()
        x = backend.embed(weights.embedding, batch.ids)
        views = cache.views(batch.page_table, batch.row_sequence, batch.positions)
        other_s = clock() - begun
        for index, layer in enumerate(weights.layers):
            kv = views[index]
            t0 = clock()
            h = rms_norm(x, layer.attention_norm, eps, mode)
            t1 = clock()
            qkv = linear(h, layer.qkv)
            t2 = clock()
            h = attention(rope_and_store(qkv, rope, kv, heads), kv, window, mode)
            t3 = clock()
            y = linear(h, layer.o_proj)
            t4 = clock()
            add(x, y)
            h = rms_norm(x, layer.ffn_norm, eps, mode)
            t5 = clock()
            result = run_moe(index, h, batch.deadline, batch.priority)
            t6 = clock()
            add(x, result.rows)
            norm_s += (t1 - t0) + (t5 - t4) + (clock() - t6)
            qkv_s += t2 - t1
            attention_s += t3 - t2
            o_proj_s += t4 - t3
            moe_s += t6 - t5
            if result.failed:
                batch, x = _drop_failed(batch, x, result.failed, failed)
                if not len(x):
                    break
                views = cache.views(batch.page_table, batch.row_sequence, batch.positions)

        begun = clock()
        logits = self._no_logits
        if len(batch.logit_rows):
            last = rms_norm(x[batch.logit_rows], weights.final_norm, eps, mode)
            logits = linear(last, weights.head)
        scored, scored_sequences = self._no_rows, list[int]()
        if len(batch.scored_rows):
            scored = rms_norm(x[batch.scored_rows], weights.final_norm, eps, mode)
            scored_sequences = batch.row_sequence[batch.scored_rows].tolist()
        times.head += clock() - begun
        times.norm += norm_s
        times.qkv += qkv_s
        times.attention += attention_s
        times.o_proj += o_proj_s
        times.moe += moe_s
        times.other += other_s
        return StepOutput(
            logits,
            batch.row_sequence[batch.logit_rows].tolist(),
            failed,
            scored,
            scored_sequences,
        )


def _drop_failed(
    batch: StepBatch, x: F32, rows: Mapping[int, ColibriError], failed: dict[int, ColibriError]
) -> tuple[StepBatch, F32]:
    """Returns the step without the sequences of the failed rows, and notes these in `failed`."""
    for row in sorted(rows):
        failed.setdefault(int(batch.row_sequence[row]), rows[row])
    keep = ~np.isin(batch.row_sequence, list(failed))
    moved = np.cumsum(keep) - 1
    left = replace(
        batch,
        ids=batch.ids[keep],
        positions=batch.positions[keep],
        row_sequence=batch.row_sequence[keep],
        logit_rows=moved[batch.logit_rows[keep[batch.logit_rows]]],
        scored_rows=moved[batch.scored_rows[keep[batch.scored_rows]]],
    )
    return left, x[keep]
