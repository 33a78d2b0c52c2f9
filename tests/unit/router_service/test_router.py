"""MoeRouter over the in-process executor: equal to the contract's own words under every placement; bad rows
and lost dispatches fail alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from colibri.deadline import Deadline
from colibri.errors import BadRow, ColibriError, ExpertNotLoaded, InvalidInput, WorkerLost
from colibri.kernels.api import (
    F32,
    U32,
    Array,
    ComputeMode,
    GatePrecision,
    PackedExpert,
    PackedLinear,
    UnitBatch,
)
from colibri.kernels.arithmetic.floats import to_rows
from colibri.kernels.reference import ReferenceBackend
from colibri.placement import Directory, Membership, Placement, Reading, spread
from colibri.router_service.executor import Answers, LocalExecutor
from colibri.router_service.plan import LayerPlan
from colibri.router_service.router import MoeRouter
from colibri.router_service.stats import ExchangeTimes, minus

LAYERS, HIDDEN, FFN = 2, 8, 16
BACKEND = ReferenceBackend()
MODES = pytest.mark.parametrize("mode", list(ComputeMode), ids=lambda mode: mode.value)


@dataclass
class Model:
    gates: list[PackedLinear]
    experts: dict[tuple[int, int], PackedExpert]

    def run_units(self, layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        weights = [self.experts[layer, expert] for expert in batch.group_expert.tolist()]
        return BACKEND.expert_units(x, weights, batch), np.zeros(0, dtype=np.uint32)


def make_model(rng: np.random.Generator, mode: ComputeMode, experts: int = 4) -> Model:
    def matrix(rows: int, columns: int) -> Array:
        return to_rows(rng.standard_normal((rows, columns)), mode)

    return Model(
        [BACKEND.pack_linear(matrix(experts, HIDDEN), mode) for _ in range(LAYERS)],
        {
            (layer, expert): BACKEND.pack_expert(
                matrix(FFN, HIDDEN), matrix(FFN, HIDDEN), matrix(HIDDEN, FFN), mode
            )
            for layer in range(LAYERS)
            for expert in range(experts)
        },
    )


def make_router(
    model: Model, mode: ComputeMode, top_k: int, workers: int = 1, executor: LocalExecutor | None = None
) -> MoeRouter:
    names = [f"w{i}" for i in range(workers)]
    directory = Directory(Membership(spread(LAYERS, model.gates[0].n, names), {}))
    return MoeRouter(BACKEND, mode, model.gates, top_k, directory, executor or LocalExecutor(model.run_units))


def rows_for(rng: np.random.Generator, mode: ComputeMode, rows: int) -> Array:
    return to_rows(rng.standard_normal((rows, HIDDEN)), mode)


def oracle(model: Model, layer: int, x: Array, top_k: int) -> F32:
    """Every (row, slot) alone, then the fp32 sum in slot order."""
    gate = BACKEND.gate(x, model.gates[layer], top_k)
    y = np.zeros((len(x), HIDDEN), dtype=np.float32)
    one, zero = np.ones(1, dtype=np.uint32), np.zeros(1, dtype=np.uint32)
    for row in range(len(x)):
        for slot in range(top_k):
            expert = gate.experts[row, slot : slot + 1].astype(np.uint32)
            batch = UnitBatch(expert, one, zero, zero, zero, gate.weights[row, slot : slot + 1], one)
            product, _ = model.run_units(layer, x[row : row + 1], batch)
            y[row] = product[0] if slot == 0 else y[row] + product[0]
    return y


@MODES
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_equals_the_slot_order_sum_on_any_number_of_workers(mode: ComputeMode, top_k: int) -> None:
    rng = np.random.default_rng(top_k)
    model = make_model(rng, mode)
    x = rows_for(rng, mode, 37)
    for layer in range(LAYERS):
        expected = oracle(model, layer, x, top_k)
        for workers in (1, 2, 3, 8):
            router = make_router(model, mode, top_k, workers)
            result = router.forward(layer, x)
            assert result.failed == {}
            assert np.array_equal(result.rows, expected)
            for row in (0, 17, 36):
                assert np.array_equal(router.forward(layer, x[row : row + 1]).rows[0], expected[row])


@MODES
def test_no_rows(mode: ComputeMode) -> None:
    rng = np.random.default_rng(0)
    router = make_router(make_model(rng, mode), mode, 2)
    result = router.forward(0, rows_for(rng, mode, 0))
    assert result.rows.shape == (0, HIDDEN)
    assert result.failed == {}


@MODES
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_bad_row_fails_alone(mode: ComputeMode, poison: float) -> None:
    rng = np.random.default_rng(1)
    model = make_model(rng, mode)
    router = make_router(model, mode, 2, workers=2)
    x = rows_for(rng, mode, 9)
    expected = oracle(model, 1, x, 2)
    x[4, 3] = to_rows(np.array([poison]), mode)[0]
    result = router.forward(1, x)
    assert list(result.failed) == [4]
    assert isinstance(result.failed[4], BadRow)
    expected[4] = 0
    assert np.array_equal(result.rows, expected)
    x[:, 0] = x[4, 3]
    result = router.forward(1, x)
    assert list(result.failed) == list(range(9))
    assert not result.rows.any()


class Failing(LocalExecutor):
    """Answers for all workers but some."""

    def __init__(self, model: Model, errors: dict[int, ColibriError]) -> None:
        super().__init__(model.run_units)
        self.errors = errors

    def run(
        self, layer: int, x: Array, plan: LayerPlan, reading: Reading, deadline: Deadline, priority: int
    ) -> Answers:
        results, _ = super().run(layer, x, plan, reading, deadline, priority)
        failed = [self.errors.get(d.worker, r) for d, r in zip(plan.dispatches, results, strict=True)]
        return Answers(failed)


def test_rows_of_a_lost_worker_fail_with_its_error() -> None:
    rng = np.random.default_rng(2)
    model = make_model(rng, ComputeMode.FP32)
    errors: dict[int, ColibriError] = {worker: WorkerLost("gone", peer=f"w{worker}") for worker in (0, 2)}
    router = make_router(model, ComputeMode.FP32, 2, workers=4, executor=Failing(model, errors))
    x = rows_for(rng, ComputeMode.FP32, 40)
    owner = router.directory.current().placement.owner(0)
    workers = owner[router.gate(0, x).experts]
    lost = np.isin(workers, list(errors)).any(axis=1)
    assert 0 < lost.sum() < 40
    expected = oracle(model, 0, x, 2)
    expected[lost] = 0
    result = router.forward(0, x)
    assert np.array_equal(result.rows, expected)
    assert dict(result.failed) == {
        row: errors[0] if 0 in workers[row] else errors[2] for row in np.flatnonzero(lost).tolist()
    }


def test_a_unit_that_the_worker_refuses_fails_its_row() -> None:
    rng = np.random.default_rng(3)
    model = make_model(rng, ComputeMode.FP32)
    x = rows_for(rng, ComputeMode.FP32, 12)

    def run_units(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        rows, _ = model.run_units(layer, x, batch)
        status = np.zeros(len(rows), dtype=np.uint32)
        status[-1] = 1
        rows[-1] = 0
        return rows, status

    router = make_router(model, ComputeMode.FP32, 2, 1, LocalExecutor(run_units))
    expected = oracle(model, 0, x, 2)
    expected[-1] = 0
    result = router.forward(0, x)
    assert list(result.failed) == [11]
    assert isinstance(result.failed[11], BadRow)
    assert np.array_equal(result.rows, expected)


def test_a_local_error_is_a_result() -> None:
    def run_units(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        raise ExpertNotLoaded("expert 1 of layer 0")

    rng = np.random.default_rng(4)
    router = make_router(make_model(rng, ComputeMode.FP32), ComputeMode.FP32, 2, 1, LocalExecutor(run_units))
    result = router.forward(0, rows_for(rng, ComputeMode.FP32, 2))
    assert [type(error) for error in result.failed.values()] == [ExpertNotLoaded, ExpertNotLoaded]


def test_a_new_placement_takes_effect_at_the_next_layer() -> None:
    rng = np.random.default_rng(5)
    model = make_model(rng, ComputeMode.FP32)
    router = make_router(model, ComputeMode.FP32, 2, workers=2)
    x = rows_for(rng, ComputeMode.FP32, 5)
    first = router.forward(0, x)
    before = router.exchange_times()
    router.directory.publish(Membership(spread(LAYERS, 4, ["w9"], epoch=2), {}))
    second = router.forward(0, x)
    assert (first.epoch, second.epoch) == (1, 2)
    assert np.array_equal(first.rows, second.rows)
    assert minus(router.exchange_times(), before).messages == 1


class Narrow(LocalExecutor):
    """Takes few rows at once."""

    max_rows = 4

    def run(
        self, layer: int, x: Array, plan: LayerPlan, reading: Reading, deadline: Deadline, priority: int
    ) -> Answers:
        assert all(len(dispatch.rows) <= 4 for dispatch in plan.dispatches)
        return super().run(layer, x, plan, reading, deadline, priority)


@pytest.mark.parametrize("rows", [4, 5, 11])
def test_more_rows_than_fit_go_in_several_exchanges(rows: int) -> None:
    rng = np.random.default_rng(rows)
    model = make_model(rng, ComputeMode.FP32)
    router = make_router(model, ComputeMode.FP32, 2, 2, Narrow(model.run_units))
    x = rows_for(rng, ComputeMode.FP32, rows)
    expected = oracle(model, 0, x, 2)
    x[rows - 1, 0] = np.nan
    expected[rows - 1] = 0
    result = router.forward(0, x)
    assert np.array_equal(result.rows, expected)
    assert list(result.failed) == [rows - 1]
    assert f"row {rows - 1}:" in result.failed[rows - 1].message
    assert router.exchange_times().exchanges == -(-rows // 4)


def test_times_add_up() -> None:
    rng = np.random.default_rng(6)
    model = make_model(rng, ComputeMode.FP32)
    router = make_router(model, ComputeMode.FP32, 1, workers=1)
    x = rows_for(rng, ComputeMode.FP32, 3)
    x[0, 0] = np.nan
    for _ in range(4):
        router.forward(0, x)
    times = router.times()
    assert (times.layers, times.rows, times.failed_rows) == (4, 12, 4)
    assert min(times.gate_s, times.plan_s, times.exchange_s, times.merge_s) > 0
    exchange = router.exchange_times()
    assert isinstance(exchange, ExchangeTimes)
    assert (exchange.exchanges, exchange.messages) == (4, 4)
    assert 0 < exchange.worker_compute_s <= times.exchange_s


@pytest.mark.parametrize(
    ("layer", "shape", "dtype", "names"),
    [
        (-1, (1, HIDDEN), np.float32, "layer"),
        (LAYERS, (1, HIDDEN), np.float32, "layer"),
        (0, (1, HIDDEN + 1), np.float32, "x:"),
        (0, (HIDDEN,), np.float32, "x:"),
        (0, (1, HIDDEN), np.uint16, "x:"),
        (0, (1, HIDDEN), np.float64, "x:"),
    ],
)
def test_wrong_input_is_named(layer: int, shape: tuple[int, ...], dtype: type, names: str) -> None:
    router = make_router(make_model(np.random.default_rng(0), ComputeMode.FP32), ComputeMode.FP32, 2)
    x: Array = np.zeros(shape, dtype=dtype)
    with pytest.raises(InvalidInput, match=names):
        router.forward(layer, x)
    with pytest.raises(InvalidInput, match=names):
        router.gate(layer, x)


def test_a_placement_of_another_model_is_refused() -> None:
    router = make_router(make_model(np.random.default_rng(0), ComputeMode.FP32), ComputeMode.FP32, 2)
    wrong: Placement = spread(LAYERS + 1, 4, ["w0"], epoch=2)
    router.directory.publish(Membership(wrong, {}))
    with pytest.raises(InvalidInput, match="placement"):
        router.forward(0, np.zeros((1, HIDDEN), dtype=np.float32))


def test_wrong_construction_is_named() -> None:
    model = make_model(np.random.default_rng(0), ComputeMode.FP32)
    other = make_model(np.random.default_rng(0), ComputeMode.FP32, experts=3)
    with pytest.raises(InvalidInput, match="top_k"):
        make_router(model, ComputeMode.FP32, 5)
    with pytest.raises(InvalidInput, match="top_k"):
        make_router(model, ComputeMode.FP32, 0)
    with pytest.raises(InvalidInput, match=r"gates\[1\]"):
        make_router(Model([model.gates[0], other.gates[0]], {}), ComputeMode.FP32, 2)
    with pytest.raises(InvalidInput, match="gates"):
        MoeRouter(
            BACKEND,
            ComputeMode.FP32,
            [],
            2,
            Directory(Membership(spread(1, 1, ["w"]), {})),
            LocalExecutor(model.run_units),
        )


def test_a_narrower_precision_is_counted() -> None:
    """Logits 1000.6 and 1001.4 of 32767 are one integer: that row alone goes elsewhere than fp32 would send it."""
    mode = ComputeMode.FP32
    model = make_model(np.random.default_rng(), mode)
    gate = np.zeros((4, HIDDEN), dtype=np.float32)
    gate[:, 0], gate[:, 1] = (32767, 1000.6, 1001.4, -32767), (1, 2, 3, 4)
    model.gates[0] = BACKEND.pack_linear(gate, mode)
    x = np.eye(2, HIDDEN, dtype=np.float32)
    directory = Directory(Membership(spread(LAYERS, 4, ["w0"]), {}))
    executor = LocalExecutor(model.run_units)
    narrow = MoeRouter(BACKEND, mode, model.gates, 2, directory, executor, GatePrecision.INT16)
    assert narrow.gate(0, x).experts.tolist() == [[0, 1], [3, 2]]
    assert make_router(model, mode, 2).gate(0, x).experts.tolist() == [[0, 2], [3, 2]]
    narrow.forward(0, x)
    assert (narrow.times().rows, narrow.times().differing_rows) == (2, 1)
    executor.close()
