"""A run: one thread with one event loop sends requests when they are due and keeps what comes back.

The open loop never waits for answers: each request is a task of its own, sent at its scheduled time. What the
declared bound of requests in flight does not let through is recorded as BOUND_EXCEEDED, and the run is
invalid (colibri.load.validity).
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from colibri.deadline import Clock
from colibri.errors import ColibriError, ConfigError, DeadlineExpired
from colibri.load.arrivals import MAX_REQUESTS, Arrivals, ClosedLoop, OpenLoop
from colibri.load.record import BOUND_EXCEEDED, STOPPED, Failure, Recording, RequestRecord
from colibri.load.targets.target import Target
from colibri.load.workload import Workload

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


@dataclass(frozen=True, slots=True)
class RunLimits:
    """in_flight: requests at once, at most. request_timeout_s: of one answer, from when it is sent.
    drain_s: for answers that still run after the last request was sent."""

    in_flight: int = 128
    request_timeout_s: float = 120.0
    drain_s: float = 120.0
    connect_timeout_s: float = 10.0

    def __post_init__(self) -> None:
        if self.in_flight < 1:
            raise ConfigError("in flight", "at least 1", self.in_flight)
        for name in ("request_timeout_s", "drain_s", "connect_timeout_s"):
            if not 0 <= getattr(self, name) < 1e7:
                raise ConfigError(name, "0 to 1e7 seconds", getattr(self, name))


@dataclass(frozen=True, slots=True)
class Progress:
    """failed: also what was not sent for the bound, but not what the run stopped itself. tokens: arrived so
    far, over all requests."""

    elapsed_s: float
    sent: int
    in_flight: int
    completed: int
    failed: int
    tokens: int


@dataclass(frozen=True, slots=True)
class RunResult:
    """records: in the order in which they ended. started, ended: absolute, on the records' clock.

    loop_lateness: seconds by which the event loop woke late, once per PROBE_S. loop_cpu_s: of the loop's
    thread; process_cpu_s: of the whole process meanwhile. stopped: the run was told to end.
    """

    arrivals: Arrivals
    limits: RunLimits
    records: tuple[RequestRecord, ...]
    started: float
    ended: float
    loop_lateness: tuple[float, ...]
    loop_cpu_s: float
    process_cpu_s: float
    peak_in_flight: int
    stopped: bool

    @property
    def duration_s(self) -> float:
        return self.ended - self.started


class LoadRun:
    """One run, once: `start` it in its own thread, `stop` it or let it end, `wait` for the result.

    on_record: called in the run's thread for each request that is over; it must be quick.
    """

    def __init__(
        self,
        target: Target,
        workload: Workload,
        arrivals: Arrivals,
        limits: RunLimits | None = None,
        *,
        clock: Clock = time.monotonic,
        on_record: Callable[[RequestRecord], None] | None = None,
    ) -> None:
        self.limits = limits or RunLimits()
        if isinstance(arrivals, ClosedLoop) and arrivals.users > self.limits.in_flight:
            raise ConfigError("users", f"at most {self.limits.in_flight} (in flight)", arrivals.users)
        self._target = target
        self._workload = workload
        self._arrivals = arrivals
        self._clock = clock
        self._on_record = on_record
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._connected = threading.Event()
        self._done = threading.Event()
        self._stop_asked = False
        self._drain_until: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake: asyncio.Event | None = None
        self._result: RunResult | None = None
        self._error: BaseException | None = None
        self._started = 0.0
        self._recordings: dict[int, Recording] = {}
        self._records: list[RequestRecord] = []
        self._sent = self._whole = self._failed = self._tokens_done = self._peak = 0

    def start(self) -> None:
        """Connects and sends, in a thread. Returns when connected; raises ColibriError when the target does
        not answer."""
        if self._thread is not None:
            raise RuntimeError("a LoadRun runs once")
        self._thread = threading.Thread(target=self._main, name="load", daemon=True)
        self._thread.start()
        if not self._connected.wait(self.limits.connect_timeout_s + _END_S):
            raise DeadlineExpired("the load run's thread does not connect")
        if self._error is not None:
            raise self._error

    def stop(self, drain_s: float | None = None) -> None:
        """No more requests; those that run have `drain_s` seconds (default: the limits'), then they end as
        STOPPED. Returns at once; any thread; the last call counts."""
        with self._lock:
            self._stop_asked = True
            self._drain_until = self._clock() + (self.limits.drain_s if drain_s is None else drain_s)
            if self._loop is not None and self._wake is not None:
                self._loop.call_soon_threadsafe(self._wake.set)

    def wait(self, timeout_s: float) -> RunResult:
        """The result, when the run is over. Raises DeadlineExpired after `timeout_s`, or what ended the run."""
        if not self._done.wait(timeout_s):
            raise DeadlineExpired(f"the load run is not over after {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise RuntimeError("a run that is over has a result")
        return self._result

    def join(self, timeout_s: float) -> bool:
        """Whether the run is over, after at most `timeout_s` seconds."""
        return self._done.wait(timeout_s)

    @property
    def over(self) -> bool:
        return self._done.is_set()

    def progress(self) -> Progress:
        """Any thread, any time."""
        running = list(self._recordings.values())
        return Progress(
            elapsed_s=self._clock() - self._started if self._started else 0.0,
            sent=self._sent,
            in_flight=len(running),
            completed=self._whole,
            failed=self._failed,
            tokens=self._tokens_done + sum(len(recording.token_times) for recording in running),
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.over:
            self.stop(0.0)
            self._done.wait(self.limits.connect_timeout_s + _END_S)

    def _main(self) -> None:
        try:
            self._result = asyncio.run(self._run())
        except BaseException as error:
            self._error = error
        finally:
            with self._lock:
                self._loop = None
            self._done.set()
            self._connected.set()

    async def _run(self) -> RunResult:
        with self._lock:
            self._loop = asyncio.get_running_loop()
            self._wake = wake = asyncio.Event()
            if self._stop_asked:
                wake.set()
        try:
            await self._target.open(self.limits.connect_timeout_s)
            late: list[float] = []
            probe = asyncio.create_task(self._probe(late))
            cpu, process_cpu = time.thread_time(), time.process_time()
            self._started = self._clock()
            self._connected.set()
            if isinstance(self._arrivals, OpenLoop):
                await self._open_loop(self._arrivals, wake)
            else:
                await self._closed_loop(self._arrivals, wake)
            ended = self._clock()
            probe.cancel()
            return RunResult(
                arrivals=self._arrivals,
                limits=self.limits,
                records=tuple(self._records),
                started=self._started,
                ended=ended,
                loop_lateness=tuple(late),
                loop_cpu_s=time.thread_time() - cpu,
                process_cpu_s=time.process_time() - process_cpu,
                peak_in_flight=self._peak,
                stopped=self._stop_asked,
            )
        finally:
            await self._target.close()

    async def _open_loop(self, arrivals: OpenLoop, wake: asyncio.Event) -> None:
        tasks: set[asyncio.Task[Failure | None]] = set()
        for index, offset in enumerate(arrivals.offsets):
            due = self._started + offset
            recording = Recording(index, self._workload.request(index), due, self._clock)
            if await _sleep_until(due, self._clock, wake):
                break
            if len(tasks) >= self.limits.in_flight:
                text = f"{len(tasks)} requests were in flight, the declared bound"
                self._keep(recording, Failure(BOUND_EXCEEDED, text))
                continue
            task = asyncio.create_task(self._ask(recording))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await self._drain(tasks)

    async def _closed_loop(self, arrivals: ClosedLoop, wake: asyncio.Event) -> None:
        until = math.inf if arrivals.duration_s is None else self._started + arrivals.duration_s
        numbers = iter(range(arrivals.requests or MAX_REQUESTS))

        async def user() -> None:
            index = next(numbers, None)
            while index is not None and not wake.is_set() and self._clock() < until:
                request = self._workload.request(index)
                # Due now: making the prompt was the user's own time, not the server's.
                failure = await self._ask(Recording(index, request, self._clock(), self._clock))
                index = next(numbers, None)
                if index is None:
                    return
                pause = arrivals.think_s
                if failure is not None:
                    advised = failure.retry_after_s
                    pause += min(_FAILURE_PAUSE_S if advised is None else advised, _MAX_FAILURE_PAUSE_S)
                if pause and await _sleep_until(self._clock() + pause, self._clock, wake):
                    return

        users = [asyncio.create_task(user()) for _ in range(arrivals.users)]
        asking = set(users)
        while asking and not wake.is_set() and self._clock() < until:
            _, asking = await asyncio.wait(asking, timeout=_LOOK_S)
        await self._drain(asking)
        for task in users:
            task.result()

    async def _drain(self, tasks: Iterable[asyncio.Task[Any]]) -> None:
        """Until all are over, at most for the time that `stop` or the limits give them; then they are
        cancelled."""
        began = self._clock()
        pending = set(tasks)
        while pending and self._clock() < (self._drain_until or began + self.limits.drain_s):
            _, pending = await asyncio.wait(pending, timeout=_LOOK_S)
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=_END_S)

    async def _ask(self, recording: Recording) -> Failure | None:
        """One request to its end. A cancellation ends it as STOPPED and goes no further."""
        self._sent += 1
        self._recordings[recording.index] = recording
        self._peak = max(self._peak, len(self._recordings))
        bound = self.limits.request_timeout_s
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
        del self._recordings[recording.index]
        self._keep(recording, failure)
        return failure

    def _keep(self, recording: Recording, failure: Failure | None) -> None:
        record = recording.freeze(failure)
        self._tokens_done += len(record.token_times)
        self._whole += failure is None
        self._failed += failure is not None and failure.kind != STOPPED
        self._records.append(record)
        if self._on_record is not None:
            self._on_record(record)

    async def _probe(self, late: list[float]) -> None:
        """How late the loop runs: a reading per PROBE_S, for as long as the run lasts."""
        while True:
            due = self._clock() + PROBE_S
            await asyncio.sleep(PROBE_S)
            late.append(max(0.0, self._clock() - due))


async def _sleep_until(due: float, clock: Clock, wake: asyncio.Event) -> bool:
    """Whether the run was told to stop meanwhile."""
    while not wake.is_set():
        left = due - clock()
        if left <= 0:
            return False
        try:
            await asyncio.wait_for(wake.wait(), left)
        except TimeoutError:
            continue
    return True
