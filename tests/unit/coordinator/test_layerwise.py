"""A model layer by layer is the engine, to the bit; what is measured on it is what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from colibri.coordinator.calibration import calibrate
from colibri.coordinator.layerwise import Layerwise
from colibri.coordinator.quality import predictions, repeated_share, score
from colibri.coordinator.receipts import next_receipt
from colibri.errors import InvalidInput
from colibri.kernels.api import ComputeMode, PackedExpert
from colibri.kernels.factory import make_backend
from colibri.models.checkpoint import Checkpoint
from colibri.models.dtypes import fp32_from_stored
from tests.support.clusters import answer, deployed

PASSAGES = [[5, 9, 300, 42, 7, 199, 23, 11], [400] * 70, list(range(3, 140)), [17]]


@pytest.mark.parametrize("mode", list(ComputeMode))
def test_logits_are_the_engines(tiny_mixtral: Path, mode: ComputeMode) -> None:
    model, backend = Checkpoint.open(tiny_mixtral), make_backend("cpu", threads=2)
    found = predictions(model, backend, mode, PASSAGES)
    assert [logits.shape for logits in found] == [(len(ids), model.config.vocab) for ids in PASSAGES]
    with deployed(tiny_mixtral, 0, compute_mode=mode.value) as deployment:
        for ids, logits in zip(PASSAGES, found, strict=True):
            first = answer(deployment, ids, 1)
            assert next_receipt(0, logits[-1], first.ids[0]) == first.receipts[0]
    backend.close()


def test_what_observers_see(tiny_mixtral: Path) -> None:
    model, backend = Checkpoint.open(tiny_mixtral), make_backend("cpu", threads=1)
    seen: dict[tuple[int, int], int] = {}
    told: list[tuple[int, int]] = []

    def observe(layer: int, expert: int, rows: np.ndarray, packed: PackedExpert) -> None:
        assert rows.shape[1] == model.config.hidden
        assert packed.ffn == model.config.ffn
        seen[layer, expert] = len(rows)

    Layerwise(model, backend, ComputeMode.FP32, PASSAGES).run(
        observe, lambda done, total: told.append((done, total))
    )
    rows = sum(map(len, PASSAGES))
    assert sum(seen.values()) == rows * model.config.top_k * model.config.layers
    assert told[-1] == (model.config.layers * model.config.experts,) * 2
    backend.close()


def test_importances_are_mean_squares(tiny_mixtral: Path) -> None:
    model, backend = Checkpoint.open(tiny_mixtral), make_backend("cpu", threads=1)
    inputs: dict[tuple[int, int], np.ndarray] = {}
    hidden: dict[tuple[int, int], np.ndarray] = {}

    def observe(layer: int, expert: int, rows: np.ndarray, packed: PackedExpert) -> None:
        weights = model.expert(layer, expert)
        gate, up = (fp32_from_stored(part, "bf16").astype(np.float64) for part in (weights.gate, weights.up))
        x = rows.astype(np.float64)
        g, u = x @ gate.T, x @ up.T
        inputs[layer, expert] = x
        hidden[layer, expert] = g / (1 + np.exp(-g)) * u

    Layerwise(model, backend, ComputeMode.FP32, PASSAGES[:2]).run(observe)
    found = calibrate(model, backend, PASSAGES[:2])
    experts = [
        (layer, expert) for layer in range(model.config.layers) for expert in range(model.config.experts)
    ]
    assert set(found.by_expert) == set(experts)
    assert found.never_chosen == len(experts) - len(inputs)
    assert found.tokens == 78
    for layer, expert in experts:
        of_layer = np.concatenate([x for (one, _), x in inputs.items() if one == layer])
        mean = (of_layer**2).mean(axis=0)
        got_inputs, got_hidden = found.by_expert[layer, expert]
        assert got_inputs is not None
        if (layer, expert) not in inputs:
            np.testing.assert_allclose(got_inputs, mean, rtol=1e-5)
            assert got_hidden is None
            continue
        x, h = inputs[layer, expert], hidden[layer, expert]
        np.testing.assert_allclose(got_inputs, ((x**2).sum(0) + 64 * mean) / (len(x) + 64), rtol=1e-5)
        assert got_hidden is not None
        expected = ((h**2).sum(0) + 64 * (h**2).mean()) / (len(h) + 64)
        np.testing.assert_allclose(got_hidden, expected, rtol=1e-4)
    backend.close()


def test_threads_change_no_importance(tiny_mixtral: Path) -> None:
    model = Checkpoint.open(tiny_mixtral)
    one, two = (calibrate(model, make_backend("cpu", threads=n), PASSAGES[:1]) for n in (1, 2))
    for key, parts in one.by_expert.items():
        for mine, theirs in zip(parts, two.by_expert[key], strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize(
    ("passages", "message"),
    [
        ([[]], "passages: expected 1 to"),
        ([[1] * 2000], "passages: expected 1 to"),
        ([[512]], "token id: expected below 512"),
    ],
)
def test_passages_that_the_model_does_not_have(
    tiny_mixtral: Path, passages: list[list[int]], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        Layerwise(Checkpoint.open(tiny_mixtral), make_backend("reference"), ComputeMode.FP32, passages)


def test_scores_by_hand() -> None:
    rng = np.random.default_rng(5)
    base, other = (rng.normal(size=(300, 7)).astype(np.float32) for _ in range(2))
    ids = rng.integers(0, 7, 300).tolist()

    def log_p(logits: np.ndarray) -> np.ndarray:
        p = np.exp(logits.astype(np.float64))
        return np.asarray(np.log(p / p.sum(axis=1, keepdims=True)))

    found = score([other], [ids], [base])
    lost = -log_p(other)[np.arange(299), ids[1:]].mean()
    assert found.perplexity == pytest.approx(np.exp(lost))
    kl = (np.exp(log_p(base)) * (log_p(base) - log_p(other))).sum(axis=1)
    assert found.kl == pytest.approx(kl.mean())
    assert found.kl_error == pytest.approx(kl.std() / 300**0.5)
    assert found.same_top == (base.argmax(1) == other.argmax(1)).mean()
    same = score([base], [ids], [base])
    assert (same.kl, same.same_top) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("ids", "share"), [([1, 2, 3], 0.0), ([1, 2, 3, 4], 0.0), ([7] * 11, 7 / 8), ([1, 2, 3, 4, 5] * 2, 2 / 7)]
)
def test_repeated_share(ids: list[int], share: float) -> None:
    assert repeated_share(ids) == pytest.approx(share)
