"""The worker process: pin itself, load the heavy parts, serve, drain at SIGTERM."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING

from colibri.expert_service.config import WorkerConfig
from colibri.expert_service.cpu_locks import host_locks
from colibri.expert_service.low_priority import call_lowered
from colibri.expert_service.pinning import Pinning, bind, die_with_parent

if TYPE_CHECKING:
    from colibri.expert_service.assembly import WorkerServer

__all__ = ["WorkerConfig", "run_worker", "settle"]

_log = logging.getLogger(__name__)

#: How long the interpreter may take to end its threads after a drain, seconds.
_EXIT_S = 5.0
#: Libraries under NumPy start a thread per CPU unless told otherwise; the worker uses none of theirs.
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def settle(place: Pinning, parent_pid: int | None = None) -> None:
    """Pins the process. Call it first, in the main thread, before NumPy and grpc are imported: their threads and
    memory inherit CPUs and policy.

    parent_pid: the process whose end ends this one.

    Raises PinningRefused and ConfigError as `bind`, WorkerLost if the parent has ended already.
    """
    if parent_pid is not None:
        die_with_parent(parent_pid)
    bind(place, host_locks(os.environ))
    for name in _ONE_THREAD:
        os.environ.setdefault(name, "1")


def run_worker(config: WorkerConfig, ready: Callable[[str], None]) -> int:
    """Runs a settled worker process to its end. Call it from the main thread.

    SIGTERM drains: health turns NOT_SERVING, and what is in flight may end within the grace. A second one ends the
    process at once. SIGINT does the same, unless a parent watches over this process.

    ready: called with the address once the worker answers there.

    Returns the exit code: 0 after a full drain, 1 if something in flight was cut off, 130 after SIGINT. Raises the
    typed errors of a failed start.
    """
    stop = _StopSignal(heed_interrupt=config.parent_pid is None)
    # Only now: these import NumPy and grpc.
    if config.yielding_start:
        call_lowered(lambda: import_module("colibri.expert_service.assembly"))
    from colibri.expert_service.assembly import WorkerServer

    server = WorkerServer(config)
    # What was imported lives as long as the process: collections need not walk over it in the middle of a
    # request.
    gc.collect()
    gc.freeze()
    server.start()
    ready(server.target)
    number = stop.wait(lambda: _forgotten(server, config))
    drained = server.stop(config.grace_s)
    if not drained:
        _log.warning("%s: the grace of %g s was over before all was answered", config.name, config.grace_s)
    code = 130 if number == signal.SIGINT else 0 if drained else 1
    _end_for_sure(code)
    return code


class _StopSignal:
    """Notes the first SIGTERM or SIGINT; the second ends the process."""

    def __init__(self, *, heed_interrupt: bool) -> None:
        self._number: int | None = None
        self._came = threading.Event()
        signal.signal(signal.SIGTERM, self._handle)
        # Ctrl-C goes to the whole process group; a parent decides for its workers itself.
        signal.signal(signal.SIGINT, self._handle if heed_interrupt else signal.SIG_IGN)

    def wait(self, over: Callable[[], bool]) -> int:
        """Waits for the first signal and returns its number. If `over` returns true, that counts as SIGTERM."""
        while self._number is None:
            self._came.wait(1.0)
            if self._number is None and over():
                return signal.SIGTERM
        return self._number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number is not None:
            os._exit(128 + number)
        self._number = number
        self._came.set()


def _forgotten(server: WorkerServer, config: WorkerConfig) -> bool:
    """Whether the lease is over: no coordinator has called for too long."""
    if config.lease_s is None or time.monotonic() - server.heard < config.lease_s:
        return False
    _log.warning("%s: no coordinator has called for %g s: it ends", config.name, config.lease_s)
    return True


def _end_for_sure(code: int) -> None:
    """Ends the interpreter even if a call hangs: it joins its threads."""

    timer = threading.Timer(_EXIT_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
