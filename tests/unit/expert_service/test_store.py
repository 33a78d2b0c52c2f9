from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from colibri.errors import Code, ExpertNotLoaded, InvalidInput, OverBudget
from colibri.expert_service.process_facts import count_threads, open_fds
from colibri.expert_service.store import LoadStep, WeightStore
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from colibri.models.checkpoint import Checkpoint
from colibri.models.random_mixtral import RandomMixtral, random_mixtral

BACKEND = make_backend("reference")


@pytest.fixture
def store(tiny_mixtral: Path) -> WeightStore:
    return WeightStore(Checkpoint.open(tiny_mixtral), BACKEND, ComputeMode.BF16)


def test_load_get_unload(store: WeightStore, tiny_mixtral: Path) -> None:
    keys = [(0, 1), (2, 7), (0, 0)]
    steps: list[LoadStep] = []
    last = store.load(keys, steps.append)
    assert [step.experts_done for step in steps] == [0, 1, 2, 3]
    assert {step.experts_total for step in steps} == {3}
    assert steps[-1] == last
    assert last.bytes_done == store.bytes > 0
    assert last.read_seconds > 0
    assert last.pack_seconds > 0
    weights = Checkpoint.open(tiny_mixtral).expert(2, 7)
    expected = BACKEND.pack_expert(weights.gate, weights.up, weights.down, ComputeMode.BF16)
    np.testing.assert_array_equal(store.get(2, 7).data, expected.data)
    assert (len(store), len(store.packed())) == (3, 3)
    assert store.unload([(2, 7), (1, 1)]) == expected.data.nbytes
    with pytest.raises(ExpertNotLoaded, match="expert 7 of layer 2 is not loaded here"):
        store.get(2, 7)
    assert len(store) == 2


def test_loading_again_changes_nothing(store: WeightStore) -> None:
    first = store.load([(0, 0), (0, 1)])
    held = store.get(0, 0)
    again = store.load([(0, 0), (0, 1), (0, 0)])
    assert store.get(0, 0) is held
    assert (again.experts_done, again.read_seconds, again.pack_seconds) == (3, 0.0, 0.0)
    assert store.bytes == first.bytes_done


def test_nothing_to_load(store: WeightStore) -> None:
    assert store.load([]) == LoadStep(0, 0, 0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((3, 0), "layer: expected 0 to 2, got 3"),
        ((0, 8), "expert: expected 0 to 7, got 8"),
        ((-1, 0), "layer: "),
    ],
)
def test_ids_out_of_range_load_nothing(store: WeightStore, key: tuple[int, int], message: str) -> None:
    for call in (store.load, store.unload, store.check):
        with pytest.raises(InvalidInput, match=message):
            call([(0, 0), key])
    assert len(store) == 0


def test_stopping_early_keeps_what_is_loaded(store: WeightStore) -> None:
    steps = store.load_steps([(0, 0), (0, 1), (0, 2)])
    assert next(steps).experts_done == 0
    assert next(steps).experts_done == 1
    del steps
    assert len(store) == 1


def test_many_threads(store: WeightStore) -> None:
    keys = [(layer, expert) for layer in range(3) for expert in range(8)]
    threads = [
        threading.Thread(target=store.load, args=(keys[shift:] + keys[:shift],)) for shift in (0, 5, 11)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(store) == 24
    assert store.bytes == 24 * store.get(0, 0).data.nbytes


def test_descriptors_and_threads_do_not_grow_with_experts(store: WeightStore) -> None:
    store.load([(0, 0)])
    before = open_fds(), count_threads()
    store.load([(layer, expert) for layer in range(3) for expert in range(8)])
    assert open_fds() <= before[0]
    assert count_threads() <= before[1]


def test_the_budget_is_checked_before_anything_is_read(tiny_mixtral: Path) -> None:
    checkpoint = Checkpoint.open(tiny_mixtral)
    one = WeightStore(checkpoint, BACKEND, ComputeMode.BF16).expert_bytes
    store = WeightStore(checkpoint, BACKEND, ComputeMode.BF16, budget=3 * one + 1)
    store.load([(0, 0), (0, 1), (0, 0)])
    with pytest.raises(
        OverBudget, match=f"at most {3 * one + 1} bytes, got a load of 2 .* makes {4 * one}"
    ) as caught:
        store.load([(0, 0), (0, 2), (0, 3)])
    assert (caught.value.code, caught.value.retryable) == (Code.RESOURCE_EXHAUSTED, False)
    assert len(store) == 2
    store.load([(0, 2)])
    assert store.bytes == 3 * one
    store.unload([(0, 0)])
    store.load([(1, 1)])
    with pytest.raises(OverBudget):
        store.load([(1, 2)])


def test_loads_under_way_count_and_are_forgotten(tiny_mixtral: Path) -> None:
    checkpoint = Checkpoint.open(tiny_mixtral)
    one = WeightStore(checkpoint, BACKEND, ComputeMode.BF16).expert_bytes
    store = WeightStore(checkpoint, BACKEND, ComputeMode.BF16, budget=2 * one)
    under_way: Any = store.load_steps([(0, 0), (0, 1)])
    next(under_way)
    with pytest.raises(OverBudget):
        store.load([(0, 2)])
    store.load([(0, 0), (0, 1)])  # the same ones take no more
    under_way.close()
    store.unload([(0, 0), (0, 1)])
    store.load([(0, 2), (0, 3)])


@pytest.mark.parametrize("mode", ComputeMode)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_sizes_are_known_beforehand(tmp_path: Path, mode: ComputeMode, dtype: str) -> None:
    """Sizes that are no multiples of a panel."""
    model = random_mixtral(tmp_path / "m", RandomMixtral(hidden=36, ffn=45, layers=1, experts=2, dtype=dtype))
    for backend in (BACKEND, make_backend("cpu", threads=1)):
        store = WeightStore(Checkpoint.open(model), backend, mode)
        store.load([(0, 0)])
        assert store.bytes == store.expert_bytes


def test_another_backend_may_pack(store: WeightStore) -> None:
    packer = make_backend("cpu", threads=1)
    for step in store.load_steps([(1, 3)], packer):
        assert step.experts_total == 1
    other = WeightStore(Checkpoint.open(store_folder(store)), BACKEND, ComputeMode.BF16)
    other.load([(1, 3)])
    np.testing.assert_array_equal(store.get(1, 3).data, other.get(1, 3).data)
    assert store.held() == [(1, 3)]


def store_folder(store: WeightStore) -> Path:
    checkpoint = store._model
    assert isinstance(checkpoint, Checkpoint)
    return checkpoint.folder
