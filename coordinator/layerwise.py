"""Run a model over whole passages, one layer at a time.

All rows go through a layer before the next layer's experts are loaded. So memory holds the dense part and one
expert, whatever the model's size. The kernels and their order are those of an engine with `--workers 0`, so the
logits have the same bits. Used for calibration and for measuring quality; nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from colibri.coordinator.decoder_weights import DecoderWeights
from colibri.errors import BadRow, InvalidInput
from colibri.kernels.api import (
    F32,
    U32,
    Array,
    Backend,
    ComputeMode,
    GateResult,
    KvView,
    PackedExpert,
    UnitBatch,
)
from colibri.models.model import Model, for_use, load_expert, load_gate

Observer = Callable[[int, int, Array, PackedExpert], None]
"""(layer, expert, rows [n, hidden] in the mode's row dtype, the expert): what an expert is about to compute."""
Progress = Callable[[int, int], None]
"""(experts done, experts in all)"""

_PAGE = 64


class Layerwise:
    """A run over passages. Raises InvalidInput for ids or lengths that the model does not have.

    passages: token ids, each a text from position 0.
    """

    def __init__(
        self,
        model: Model,
        backend: Backend,
        mode: ComputeMode,
        passages: Sequence[Sequence[int]],
        experts: Callable[[int, int], PackedExpert] | None = None,
    ) -> None:
        """experts: (layer, expert) -> what replaces the model's own."""
        self._model = model = for_use(model)
        self._backend = backend
        self._mode = mode
        self._load = experts or (lambda layer, expert: load_expert(model, layer, expert, backend, mode))
        config = model.config
        longest = max(map(len, passages), default=0)
        if not 0 < longest <= config.max_positions:
            raise InvalidInput("passages", f"1 to {config.max_positions} tokens each", longest)
        self._lengths = [len(passage) for passage in passages]
        self._ids = np.array([token for passage in passages for token in passage], dtype=np.uint32)
        if self._ids.max() >= config.vocab:
            raise InvalidInput("token id", f"below {config.vocab}", int(self._ids.max()))
        self._weights = DecoderWeights.load(model, backend, mode, max_positions=longest)

    def run(self, observe: Observer | None = None, progress: Progress = lambda done, total: None) -> F32:
        """Returns the residual stream after the last layer: fp32 [tokens, hidden], passages one after another."""
        backend, mode, config, weights = self._backend, self._mode, self._model.config, self._weights
        x = backend.embed(weights.embedding, self._ids)
        for index, layer in enumerate(weights.layers):
            view = self._view()
            h = backend.rms_norm(x, layer.attention_norm, config.rms_eps, mode)
            q = backend.rope_and_store(backend.linear(h, layer.qkv), weights.rope, view, config.heads)
            attended = backend.attention(q, view, config.sliding_window, mode)
            backend.add_inplace(x, backend.linear(attended, layer.o_proj))
            h = backend.rms_norm(x, layer.ffn_norm, config.rms_eps, mode)
            backend.add_inplace(x, self._experts(index, h, observe, progress))
        return x

    def logits(self, x: F32) -> Iterator[F32]:
        """Yields the logits of each passage, fp32 [tokens, vocab]. x: what `run` returned."""
        at = 0
        for length in self._lengths:
            rows = self._backend.rms_norm(
                x[at : at + length], self._weights.final_norm, self._model.config.rms_eps, self._mode
            )
            yield self._backend.linear(rows, self._weights.head)
            at += length

    def _experts(self, layer: int, h: Array, observe: Observer | None, progress: Progress) -> F32:
        config, backend = self._model.config, self._backend
        gated = backend.gate(h, load_gate(self._model, layer, backend), config.top_k)
        if not gated.ok.all():
            raise BadRow(f"layer {layer}: row {int(np.argmin(gated.ok))} holds NaN or Inf")
        parts, placed = [], np.empty((len(h) * config.top_k,), dtype=np.uint32)
        done = 0
        for expert in range(config.experts):
            rows, slots = np.nonzero(gated.experts == expert)
            if len(rows):
                mine = np.ascontiguousarray(h[rows])
                packed = self._load(layer, expert)
                if observe is not None:
                    observe(layer, expert, mine, packed)
                parts.append(backend.expert_units(mine, [packed], _units(expert, gated, rows, slots)))
                placed[rows * config.top_k + slots] = np.arange(done, done + len(rows), dtype=np.uint32)
                done += len(rows)
            progress(layer * config.experts + expert + 1, config.layers * config.experts)
        offsets = np.arange(0, len(placed) + 1, config.top_k, dtype=np.uint32)
        return backend.merge([np.concatenate(parts)], np.zeros(len(placed), dtype=np.uint32), placed, offsets)

    def _view(self) -> KvView:
        """Returns room for K and V of one layer; every passage has its own pages."""
        config = self._model.config
        dtype = np.uint16 if self._mode is ComputeMode.BF16 else np.float32
        pages = [-(-length // _PAGE) for length in self._lengths]
        table = np.full((len(pages), max(pages)), -1, dtype=np.int32)
        first = 0
        for row, count in zip(table, pages, strict=True):
            row[:count] = np.arange(first, first + count)
            first += count
        shape = (first, config.kv_heads, _PAGE, config.head_dim)
        return KvView(
            np.zeros(shape, dtype=dtype),
            np.zeros(shape, dtype=dtype),
            table,
            np.repeat(np.arange(len(pages), dtype=np.int32), self._lengths),
            np.concatenate([np.arange(length, dtype=np.int32) for length in self._lengths]),
        )


def _units(expert: int, gated: GateResult, rows: Array, slots: Array) -> UnitBatch:
    """Makes every slot of a row a unit of its own, in the order of the rows."""
    count = len(rows)

    def u32(values: object) -> U32:
        return np.ascontiguousarray(values, dtype=np.uint32)

    return UnitBatch(
        group_expert=u32([expert]),
        group_count=u32([count]),
        entry_row=u32(np.arange(count)),
        entry_slot=u32(slots),
        entry_unit=u32(np.arange(count)),
        entry_weight=np.ascontiguousarray(gated.weights[rows, slots]),
        unit_slots=np.ones(count, dtype=np.uint32),
    )
