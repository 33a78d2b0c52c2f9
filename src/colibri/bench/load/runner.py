"""A run as its caller sees it: started in a thread, watched, stopped, waited for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from colibri.bench.load.arrivals import Arrivals, ClosedLoop, OpenLoop
from colibri.bench.load.record import RequestRecord
from colibri.bench.load.result import Progress, RunLimits, RunResult
from colibri.bench.load.session import Session
from colibri.bench.load.targets.target import Target
from colibri.bench.load.workload import Workload
from colibri.deadline import Clock
from colibri.errors import ConfigError, DeadlineExpired

#: For the thread to end, beyond what it waits for itself.
_END_S = 30.0


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
        self._drain_until: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: Session | None = None
        self._result: RunResult | None = None
        self._error: BaseException | None = None

    def start(self) -> None:
        """Connects and sends, in a thread. Returns when connected; raises ColibriError when the target does
        not answer."""
        if self._thread is not None:
            raise RuntimeError("a LoadRun runs once")
        self._thread = threading.Thread(target=self._main, name="load", daemon=True)
        self._thread.start()
        try:
            if not self._connected.wait(self.limits.connect_timeout_s + _END_S):
                raise DeadlineExpired("the load run's thread does not connect")
        except BaseException:  # Ctrl-C, too: the thread must not begin behind the caller's back
            self.stop(0.0)
            raise
        if self._error is not None:
            raise self._error

    def stop(self, drain_s: float | None = None) -> None:
        """No more requests; those that run have `drain_s` seconds (default: the limits'), then they end as
        STOPPED. Returns at once; any thread; the last call counts."""
        with self._lock:
            self._drain_until = self._clock() + (self.limits.drain_s if drain_s is None else drain_s)
            if self._loop is not None and self._session is not None:
                self._loop.call_soon_threadsafe(self._session.stop, self._drain_until)

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
        """Any thread, any time; all zero before the run has connected."""
        session = self._session
        return Progress() if session is None else session.progress()

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
        try:
            await self._target.open(self.limits.connect_timeout_s)
            session = Session(self._target, self._workload, self.limits, self._clock, self._on_record)
            with self._lock:
                self._loop, self._session = asyncio.get_running_loop(), session
                if self._drain_until is not None:
                    session.stop(self._drain_until)
            self._connected.set()
            return await self._measure(session)
        finally:
            await self._target.close()

    async def _measure(self, session: Session) -> RunResult:
        probe = asyncio.create_task(session.probe())
        cpu, process_cpu = time.thread_time(), time.process_time()
        if isinstance(self._arrivals, OpenLoop):
            await session.open_loop(self._arrivals)
        else:
            await session.closed_loop(self._arrivals)
        ended = self._clock()
        probe.cancel()
        return RunResult(
            arrivals=self._arrivals,
            limits=self.limits,
            records=tuple(session.records),
            started=session.started,
            ended=ended,
            loop_lateness=tuple(session.lateness),
            loop_cpu_s=time.thread_time() - cpu,
            process_cpu_s=time.process_time() - process_cpu,
            peak_in_flight=session.peak,
            stopped=self._drain_until is not None,
        )
