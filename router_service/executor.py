"""Turn a plan's dispatches into rows of units: the interface, and its in-process form."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from colibri.deadline import Deadline
from colibri.errors import ColibriError
from colibri.kernels.api import F32, U32, Array, UnitBatch
from colibri.placement import Membership, Placement, Reading
from colibri.router_service.plan_types import Dispatch, LayerPlan, OwnerTable
from colibri.router_service.stats import ExchangeTimes, Recorder

#: run_units(layer, rows [R, hidden], batch) -> (fp32 [U, hidden], unit_status u32 [U] of UnitStatus).
RunUnits = Callable[[int, Array, UnitBatch], tuple[F32, U32]]


@dataclass(frozen=True, slots=True)
class PartResult:
    """The answer to one dispatch.

    rows: fp32 [U, hidden], weighted.
    unit_status: u32 [U] of UnitStatus; empty if all are OK.
    """

    rows: F32
    unit_status: U32


class Answers(NamedTuple):
    """One result per dispatch of the layer's plan, in the same order. An error concerns its dispatch alone.

    changed: the plan that the results answer, where recovery sent some units elsewhere; None: the plan as it was given.
    """

    results: list[PartResult | ColibriError]
    changed: LayerPlan | None = None


class ExpertExecutor(Protocol):
    """Runs the dispatches of one layer. Safe to call from several threads."""

    @property
    def max_rows(self) -> int | None:
        """Most rows of one dispatch; None: no limit."""
        ...

    def table(self, layer: int, membership: Membership) -> OwnerTable:
        """Returns which worker answers for each expert of a layer now."""
        ...

    def run(
        self,
        layer: int,
        x: Array,
        plan: LayerPlan,
        reading: Reading,
        deadline: Deadline,
        priority: int,
    ) -> Answers:
        """Computes all dispatches of a layer's plan. All are in flight before any result is awaited, and every wait is
        bounded.

        x: [rows, hidden] in the row dtype.
        reading: of the snapshot that the plan was made for.
        """
        ...

    def times(self) -> ExchangeTimes:
        """Sums since the start."""
        ...

    def close(self) -> None:
        """Ends threads and sockets. May be called twice."""
        ...


def rows_of(x: Array, dispatch: Dispatch) -> Array:
    """Returns the rows that a dispatch sends, C-contiguous; `x` itself if that is all of them."""
    return x if len(dispatch.rows) == len(x) else x[dispatch.rows]


class LocalExecutor:
    """Computes in this process with the workers' own routine. Every equality test compares with it."""

    max_rows: int | None = None

    def __init__(self, run_units: RunUnits) -> None:
        self._run_units = run_units
        self._times = Recorder(ExchangeTimes())
        self._tables: tuple[Placement, dict[int, OwnerTable]] | None = None

    def table(self, layer: int, membership: Membership) -> OwnerTable:
        placement = membership.placement
        tables = self._tables
        if tables is None or tables[0] is not placement:
            tables = self._tables = (placement, {})
        table = tables[1].get(layer)
        if table is None:
            table = tables[1][layer] = OwnerTable.of_division(
                placement.division(layer), len(placement.workers)
            )
        return table

    def run(
        self,
        layer: int,
        x: Array,
        plan: LayerPlan,
        reading: Reading,
        deadline: Deadline,
        priority: int,
    ) -> Answers:
        start = time.perf_counter()
        results: list[PartResult | ColibriError] = []
        failed = 0
        for dispatch in plan.dispatches:
            try:
                rows, status = self._run_units(layer, rows_of(x, dispatch), dispatch.batch)
            except ColibriError as error:
                results.append(error)
                failed += 1
            else:
                results.append(PartResult(rows, status))
        spent = time.perf_counter() - start
        messages = len(plan.dispatches)
        self._times.add(
            ExchangeTimes(1, messages, failed_messages=failed, wait_s=spent, worker_compute_s=spent)
        )
        return Answers(results)

    def times(self) -> ExchangeTimes:
        return self._times.snapshot()

    def close(self) -> None:
        return None
