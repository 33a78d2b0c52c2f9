"""The decoder stack against a float64 Mixtral that shares no code with it, and its behaviour when rows
fail.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from colibri.coordinator.decoder import DecoderStack, StepOutput
from colibri.coordinator.decoder_weights import DecoderWeights
from colibri.coordinator.kv_cache import KvCache, KvShape
from colibri.coordinator.moe_layer import MoeLayer
from colibri.coordinator.stats import PhaseTimes
from colibri.coordinator.step_batch import StepBatch
from colibri.deadline import Deadline
from colibri.errors import ColibriError, WorkerLost
from colibri.kernels.api import F32, Array, ComputeMode
from colibri.kernels.factory import make_backend
from colibri.models.random_mixtral import RandomMixtral
from tests.support.float64_mixtral import mixtral_forward, mixtral_logits
from tests.support.tiny_engine import TINY, TinyModel, make_tiny


def cache_of(model: TinyModel, page: int = 16) -> KvCache:
    config = model.checkpoint.config
    return KvCache(KvShape(config.layers, config.kv_heads, config.head_dim, page, 1024), model.mode)


def batch_of(cache: KvCache, lengths: list[int], ids: list[list[int]]) -> StepBatch:
    """Whole prompts; logits for every row."""
    pages = [page for length in lengths for page in cache.reserve(length) or []]
    return StepBatch(
        ids=np.concatenate([np.array(each, np.uint32) for each in ids]),
        positions=np.concatenate([np.arange(len(each), dtype=np.int32) for each in ids]),
        row_sequence=np.repeat(np.arange(len(ids), dtype=np.int32), [len(each) for each in ids]),
        page_table=cache.page_table(pages),
        logit_rows=np.arange(sum(map(len, ids))),
        deadline=Deadline(),
        priority=0,
    )


def forward(model: TinyModel, ids: list[list[int]], moe: MoeLayer | None = None) -> StepOutput:
    cache = cache_of(model)
    batch = batch_of(cache, [len(each) for each in ids], ids)
    return model.stack.forward(batch, cache, moe or model.router, PhaseTimes())


@pytest.mark.parametrize(
    "params",
    [
        TINY,
        replace(TINY, tied=True, sliding_window=20, dtype="fp32"),
        replace(TINY, heads=6, kv_heads=6, head_dim=10, hidden=50, ffn=33, top_k=1, dtype="fp16", vocab=311),
        replace(TINY, heads=8, kv_heads=1, head_dim=16, layers=3, experts=16, top_k=4, rope_theta=100.0),
    ],
    ids=["plain", "tied-window", "odd-sizes", "one-kv-head"],
)
@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_against_float64(tmp_path: Path, params: RandomMixtral, name: str) -> None:
    backend = make_backend(name)
    model = TinyModel.open(make_tiny(tmp_path / "m", params), backend, ComputeMode.FP32)
    closest = 0.0
    while closest < 1e-5:  # a route that rounding decides may differ
        ids = np.random.default_rng().integers(0, params.vocab, 75).tolist()
        expected, closest = mixtral_forward(model.checkpoint, ids)
    got = forward(model, [ids]).logits
    assert got.shape == expected.shape
    error = np.abs(got - expected).max() / np.abs(expected).max()
    backend.close()
    assert error < 2e-5, ids


def test_both_modes_stay_near_float64(model: TinyModel) -> None:
    ids = np.random.default_rng(5).integers(0, 300, 40).tolist()
    expected = mixtral_logits(model.checkpoint, ids)
    got = forward(model, [ids]).logits
    bound = (
        1e-5 if model.mode is ComputeMode.FP32 else 0.1
    )  # a bf16 rounding may flip a route of a random gate
    assert np.sqrt(((got - expected) ** 2).mean() / (expected**2).mean()) < bound


def test_tied_head_is_the_embedding(tmp_path: Path) -> None:
    backend = make_backend("reference")
    model = TinyModel.open(make_tiny(tmp_path / "m", replace(TINY, tied=True)), backend, ComputeMode.BF16)
    assert model.stack.weights.head is model.stack.weights.embedding


def test_loading_reports_every_byte(model: TinyModel) -> None:
    seen: list[tuple[int, int]] = []
    DecoderWeights.load(model.checkpoint, model.backend, model.mode, lambda d, t: seen.append((d, t)))
    done = [d for d, _ in seen]
    assert done == sorted(done)
    assert len({t for _, t in seen}) == 1
    assert done[-1] == seen[-1][1]


@dataclass
class Failing:
    """The model's own MoE layer, but row `row` of layer `layer` fails, and its numbers turn to NaN."""

    inner: MoeLayer
    layer: int
    row: int
    rows_seen: list[int]

    @dataclass
    class Result:
        rows: F32
        failed: Mapping[int, ColibriError]

    def forward(self, layer: int, x: Array, deadline: Deadline | None = None, priority: int = 0) -> Result:
        self.rows_seen.append(len(x))
        result = self.inner.forward(layer, x, deadline, priority)
        if layer != self.layer:
            return self.Result(result.rows, result.failed)
        result.rows[self.row] = np.nan
        return self.Result(result.rows, {self.row: WorkerLost("worker w1 is gone", peer="w1")})


@pytest.mark.parametrize("layer", [0, 1])
def test_a_failed_row_takes_its_sequence_and_no_other(model: TinyModel, layer: int) -> None:
    ids = [[1, 2, 3], [4, 5, 6, 7], [8, 9]]
    whole = forward(model, ids)
    moe = Failing(model.router, layer, 4, [])  # a row of the second sequence
    output = forward(model, ids, moe)
    assert list(output.failed) == [1]
    assert isinstance(output.failed[1], WorkerLost)
    assert output.sequences == [0, 0, 0, 2, 2]
    keep = [0, 1, 2, 7, 8]
    assert np.array_equal(output.logits.view(np.uint32), whole.logits[keep].view(np.uint32))
    assert moe.rows_seen == ([9, 5] if layer == 0 else [9, 9])


def test_all_rows_failed(model: TinyModel) -> None:
    moe = Failing(model.router, 0, 2, [])
    output = forward(model, [[1, 2, 3]], moe)
    assert list(output.failed) == [0]
    assert output.logits.shape == (0, 300)
    assert output.sequences == []
    assert moe.rows_seen == [3]


def test_phase_times_add_up(model: TinyModel) -> None:
    ticks = iter(range(10**6))
    stack = DecoderStack(model.stack.weights, model.backend, clock=lambda: float(next(ticks)))
    cache = cache_of(model)
    times = PhaseTimes()
    stack.forward(batch_of(cache, [3], [[1, 2, 3]]), cache, model.router, times)
    layers = model.checkpoint.config.layers
    assert (times.qkv, times.attention, times.o_proj, times.moe) == (layers,) * 4
    assert times.norm == 3 * layers
    assert (times.head, times.other) == (1, 1)
