from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from colibri.errors import ExpertNotLoaded, InvalidInput
from colibri.expert_service.process_facts import count_threads, open_fds
from colibri.expert_service.store import LoadStep, WeightStore
from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from colibri.models.checkpoint import Checkpoint

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
    assert (open_fds(), count_threads()) == before
