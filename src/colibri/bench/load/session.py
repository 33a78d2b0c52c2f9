"""The event loop's side of a run: send requests when they are due, and keep what comes back.

The open loop never waits for answers: each request is a task of its own, sent at its scheduled time. A request that
the bound of requests in flight does not let through is recorded as BOUND_EXCEEDED, and the run is invalid
(colibri.bench.load.validity).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Any

from colibri.bench.load.arrivals import MAX_REQUESTS, ClosedLoop, OpenLoop
from colibri.bench.load.record import BOUND_EXCEEDED, STOPPED, Failure, Recording, RequestRecord
from colibri.bench.load.result import Progress, RunLimits
from colibri.bench.load.targets.target import Target
from colibri.bench.load.workload import Workload
from colibri.deadline import Clock
from colibri.errors import ColibriError, DeadlineExpired

#: How often the loop looks how late it is itself.
PROBE_S = 0.05
#: Beyond a request's own time: for the target's answer that it is over.
_TIMEOUT_GRACE_S = 2.0
#: How often a drain looks whether its time is over.
_LOOK_S = 0.05
#: For what was cancelled to end.
_END_S = 10.0
#: A closed loop's pause after a failure without advice: a dead server must not be asked in a hot loop.
_FAILURE_PAUSE_S = 0.1
_MAX_FAILURE_PAUSE_S = 5.0


class Session:
    """One run's requests. All methods but `progress` belong to the event loop.

    drain_until: absolute, when what still runs after a stop is cancelled; None: as the limits say.
    """

    def __init__(
        self,
        target: Target,
        workload: Workload,
        limits: RunLimits,
        clock: Clock,
        on_record: Callable[[RequestRecord], None] | None,
    ) -> None:
        self.started = clock()
        self.records: list[RequestRecord] = []
        self.lateness: list[float] = []
        self.peak = 0
        self.drain_until: float | None = None
        self._target, self._workload, self._limits, self._clock = target, workload, limits, clock
        self._on_record = on_record
        self._wake = asyncio.Event()
        self._running: dict[int, Recording] = {}
        self._sent = self._whole = self._failed = self._tokens = 0

    def stop(self, drain_until: float) -> None:
        """No more requests."""
        self.drain_until = drain_until
        self._wake.set()

    def progress(self) -> Progress:
        """Any thread, any time."""
        running = list(self._running.values())
        return Progress(
            elapsed_s=self._clock() - self.started,
            sent=self._sent,
            in_flight=len(running),
            completed=self._whole,
            failed=self._failed,
            tokens=self._tokens + sum(len(recording.token_times) for recording in running),
        )

    async def open_loop(self, arrivals: OpenLoop) -> None:
        tasks: set[asyncio.Task[Failure | None]] = set()
        broken: list[BaseException] = []

        def ended(task: asyncio.Task[Failure | None]) -> None:
            tasks.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                broken.append(error)

        for index, offset in enumerate(arrivals.offsets):
            due = self.started + offset
            recording = Recording(index, self._workload.request(index), due, self._clock)
            if await self._sleep_until(due) or broken:
                break
            if len(tasks) >= self._limits.in_flight:
                text = f"{len(tasks)} requests were in flight, the declared bound"
                self._keep(recording, Failure(BOUND_EXCEEDED, text))
                continue
            task = asyncio.create_task(self._ask(recording))
            tasks.add(task)
            task.add_done_callback(ended)
        await self._drain(tasks)
        for error in broken:
            raise error

    async def closed_loop(self, arrivals: ClosedLoop) -> None:
        until = math.inf if arrivals.duration_s is None else self.started + arrivals.duration_s
        numbers = iter(range(arrivals.requests or MAX_REQUESTS))

        async def user() -> None:
            index = next(numbers, None)
            while index is not None and not self._wake.is_set() and self._clock() < until:
                request = self._workload.request(index)
                # Due now: making the prompt was the user's own time, not the server's.
                failure = await self._ask(Recording(index, request, self._clock(), self._clock))
                pause = arrivals.think_s
                if failure is not None:
                    advised = failure.retry_after_s
                    pause += min(_FAILURE_PAUSE_S if advised is None else advised, _MAX_FAILURE_PAUSE_S)
                index = next(numbers, None)
                due = self._clock() + pause
                if index is None or due >= until or (pause and await self._sleep_until(due)):
                    return

        asking = {asyncio.create_task(user()) for _ in range(arrivals.users)}
        while asking and not self._wake.is_set() and self._clock() < until:
            done, asking = await asyncio.wait(asking, timeout=_LOOK_S)
            for task in done:
                task.result()
        await self._drain(asking)
        for task in asking:
            if not task.cancelled():
                task.result()

    async def probe(self) -> None:
        """How late the loop runs: a reading per PROBE_S, until cancelled."""
        while True:
            due = self._clock() + PROBE_S
            await asyncio.sleep(PROBE_S)
            self.lateness.append(max(0.0, self._clock() - due))

    async def _drain(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Waits until all are over, at most as long as `stop` or the limits allow; then cancels them."""
        began = self._clock()
        pending = set(tasks)
        while pending and self._clock() < (self.drain_until or began + self._limits.drain_s):
            _, pending = await asyncio.wait(pending, timeout=_LOOK_S)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=_END_S)

    async def _ask(self, recording: Recording) -> Failure | None:
        """Runs one request to its end. A cancellation ends it as STOPPED and goes no further."""
        self._sent += 1
        self._running[recording.index] = recording
        self.peak = max(self.peak, len(self._running))
        bound = self._limits.request_timeout_s
        failure: Failure | None
        try:
            async with asyncio.timeout(bound + _TIMEOUT_GRACE_S):
                await self._target.send(recording, bound)
            failure = None
        except asyncio.CancelledError:
            failure = Failure(STOPPED, "the run ended before the answer did")
        except TimeoutError:
            failure = Failure.of(DeadlineExpired(f"no end of the answer within {bound:g} s"))
        except ColibriError as error:
            failure = Failure.of(error)
        except Exception as error:  # whatever a target trips over is this request's failure, and shows
            failure = Failure(type(error).__name__, str(error))
        del self._running[recording.index]
        self._keep(recording, failure)
        return failure

    def _keep(self, recording: Recording, failure: Failure | None) -> None:
        record = recording.freeze(failure)
        self._tokens += len(record.token_times)
        self._whole += failure is None
        self._failed += failure is not None and failure.kind != STOPPED
        self.records.append(record)
        if self._on_record is not None:
            self._on_record(record)

    async def _sleep_until(self, due: float) -> bool:
        """Sleeps. Returns whether the run was told to stop meanwhile."""
        while not self._wake.is_set():
            left = due - self._clock()
            if left <= 0:
                return False
            try:
                await asyncio.wait_for(self._wake.wait(), left)
            except TimeoutError:
                continue
        return True
