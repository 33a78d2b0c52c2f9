"""MoeRouter: one MoE layer over a batch of rows: gate, plan, exchange, merge."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from colibri.deadline import Deadline
from colibri.errors import BadRow, ColibriError, InvalidInput
from colibri.kernels.api import (
    F32,
    MAX_TOP_K,
    Array,
    Backend,
    ComputeMode,
    GatePrecision,
    GateResult,
    PackedLinear,
)
from colibri.placement import Directory, Placement, Reading
from colibri.router_service.executor import ExpertExecutor, PartResult
from colibri.router_service.expert_loads import ExpertLoads
from colibri.router_service.plan import plan_rows
from colibri.router_service.plan_types import LayerPlan
from colibri.router_service.stats import ExchangeTimes, Recorder, RouterTimes

_ROW_DTYPES = {ComputeMode.FP32: np.dtype(np.float32), ComputeMode.BF16: np.dtype(np.uint16)}


@dataclass(frozen=True, slots=True)
class MoeResult:
    """The output of one layer.

    rows: fp32 [rows, hidden], merged, without the residual; zero for failed rows.
    failed: row -> why it failed.
    """

    rows: F32
    failed: Mapping[int, ColibriError]
    epoch: int


class MoeRouter:
    """Computes MoE layers. Reads the placement once per call, so a new one takes effect at a layer boundary.
    Thread-safe.

    gates: one per layer, [experts, hidden].
    """

    def __init__(
        self,
        backend: Backend,
        mode: ComputeMode,
        gates: Sequence[PackedLinear],
        top_k: int,
        directory: Directory,
        executor: ExpertExecutor,
        precision: GatePrecision = GatePrecision.FP32,
    ) -> None:
        if not gates:
            raise InvalidInput("gates", "one per layer", "none")
        for layer, gate in enumerate(gates):
            if (gate.n, gate.k) != (gates[0].n, gates[0].k):
                expected = f"[{gates[0].n}, {gates[0].k}] as in layer 0"
                raise InvalidInput(f"gates[{layer}]", expected, [gate.n, gate.k])
        if not 1 <= top_k <= min(MAX_TOP_K, gates[0].n):
            raise InvalidInput("top_k", f"1 to {min(MAX_TOP_K, gates[0].n)}", top_k)
        self.mode = mode
        self.top_k = top_k
        self.precision = precision
        self.layers = len(gates)
        self.experts = gates[0].n
        self.hidden = gates[0].k
        self.directory = directory
        self._backend = backend
        self._gates = tuple(gates)
        self._executor = executor
        self._row_dtype = _ROW_DTYPES[mode]
        self._times = Recorder(RouterTimes())
        self._checked: Placement | None = None
        self._loads = ExpertLoads(self.layers, self.experts)
        self._batch_numbers = count()

    def gate(self, layer: int, x: Array) -> GateResult:
        """Chooses the experts of each row. Raises InvalidInput.

        x: [rows, hidden] in the mode's row dtype (fp32, or bf16 as uint16).
        """
        self._check(layer, x)
        return self._backend.gate(x, self._gates[layer], self.top_k, self.precision)

    def forward(self, layer: int, x: Array, deadline: Deadline | None = None, priority: int = 0) -> MoeResult:
        """Computes one layer. Raises InvalidInput; any other failure fails single rows.

        x: as in `gate`, the rows after the layer's second norm. If there are more than the executor takes at once,
            several exchanges follow one another.
        """
        self._check(layer, x)
        deadline = deadline or Deadline()
        step = self._executor.max_rows or len(x)
        with self.directory.reading() as reading:
            if len(x) <= step:
                return self._exchange(layer, x, 0, reading, deadline, priority)
            results = [
                self._exchange(layer, x[first : first + step], first, reading, deadline, priority)
                for first in range(0, len(x), step)
            ]
        failed = {row: error for result in results for row, error in result.failed.items()}
        return MoeResult(np.concatenate([result.rows for result in results]), failed, results[-1].epoch)

    def times(self) -> RouterTimes:
        """Sums since the start."""
        return self._times.snapshot()

    def loads(self) -> NDArray[np.int64]:
        """Rows that each expert was chosen for, since the start: [layers, experts]."""
        return self._loads.snapshot()

    def exchange_times(self) -> ExchangeTimes:
        """Returns the executor's part of these times."""
        return self._executor.times()

    def _exchange(
        self, layer: int, x: Array, first: int, reading: Reading, deadline: Deadline, priority: int
    ) -> MoeResult:
        """Computes a part of the caller's batch. first: number of x's first row there; failed rows are numbered
        likewise.
        """
        membership = reading.membership
        placement = membership.placement
        self._check_placement(placement)
        t0 = time.perf_counter()
        gate = self._backend.gate(x, self._gates[layer], self.top_k, self.precision)
        t1 = time.perf_counter()
        self._loads.add(layer, gate)
        plan = plan_rows(gate, self._executor.table(layer, membership), next(self._batch_numbers))
        t2 = time.perf_counter()
        results, changed = self._executor.run(layer, x, plan, reading, deadline, priority)
        plan = changed or plan
        t3 = time.perf_counter()
        failed = _failed_rows(layer, first, gate, plan, results)
        rows = self._merge(plan, results, len(x))
        if failed:
            rows[[row - first for row in failed]] = 0
        t4 = time.perf_counter()
        self._times.add(
            RouterTimes(1, len(x), len(failed), t1 - t0, t2 - t1, t3 - t2, t4 - t3, gate.differing)
        )
        return MoeResult(rows, failed, placement.epoch)

    def _check(self, layer: int, x: Array) -> None:
        if not 0 <= layer < self.layers:
            raise InvalidInput("layer", f"0 to {self.layers - 1}", layer)
        if x.dtype != self._row_dtype or x.ndim != 2 or x.shape[1] != self.hidden:
            expected = f"{self._row_dtype} [rows, {self.hidden}] ({self.mode.value} mode)"
            raise InvalidInput("x", expected, f"{x.dtype} {list(x.shape)}")

    def _check_placement(self, placement: Placement) -> None:
        if placement is not self._checked:
            if (placement.layers, placement.experts) != (self.layers, self.experts):
                expected = f"{self.layers} layers of {self.experts} experts"
                raise InvalidInput("placement", expected, f"{placement.layers} of {placement.experts}")
            self._checked = placement

    def _merge(self, plan: LayerPlan, results: Sequence[PartResult | ColibriError], rows: int) -> F32:
        if not plan.dispatches:
            return np.zeros((rows, self.hidden), dtype=np.float32)
        parts = [
            np.zeros((len(dispatch.unit_row), self.hidden), dtype=np.float32)
            if isinstance(result, ColibriError)
            else result.rows
            for dispatch, result in zip(plan.dispatches, results, strict=True)
        ]
        return self._backend.merge(parts, plan.part, plan.index, plan.row_offsets)


def _failed_rows(
    layer: int,
    first: int,
    gate: GateResult,
    plan: LayerPlan,
    results: Sequence[PartResult | ColibriError],
) -> dict[int, ColibriError]:
    """Returns the rows without a valid sum, each with its first reason: a bad row, then the lowest worker's error.

    first: added to row numbers.
    """
    failed: dict[int, ColibriError] = {}
    if not gate.ok.all():
        for row in (np.flatnonzero(~gate.ok) + first).tolist():
            expected = "expected finite values and gate logits"
            failed[row] = BadRow(f"layer {layer}, row {row}: {expected}, got NaN or Inf")
    for dispatch, result in zip(plan.dispatches, results, strict=True):
        if isinstance(result, ColibriError):
            for row in dispatch.rows.tolist():
                failed.setdefault(row + first, result)
        elif result.unit_status.any():
            for row in (dispatch.unit_row[result.unit_status != 0] + first).tolist():
                error = BadRow(f"layer {layer}, row {row}: the worker found NaN or Inf in it")
                failed.setdefault(row, error)
    return failed
