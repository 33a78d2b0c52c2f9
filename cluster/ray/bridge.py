"""The coordinator's side of its Ray client (`driver`): calls fail while that process is gone, and a new one starts as
soon as Ray is back.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from multiprocessing.connection import Connection
from typing import Any

from colibri.cluster.ray.driver import Answer, Setup
from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError, DeadlineExpired, WorkerLost

#: Until a driver says that it has joined Ray: on a busy machine that takes tens of seconds.
_JOIN_S = 90.0
_PAUSE_S, _MAX_PAUSE_S = 0.5, 5.0
_LOOK_S = 0.5
_END_S = 10.0


class RayAway(ColibriError):
    """Ray, or this process's client of it, is gone for now."""


class Bridge:
    """setup: returns what the next driver is to be told."""

    def __init__(
        self, setup: Callable[[], Setup], log: Callable[[str], None], clock: Clock = time.monotonic
    ) -> None:
        self._setup = setup
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._calls: dict[int, Future[Answer]] = {}
        self._number = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def joined(self) -> bool:
        with self._lock:
            return self._connection is not None

    def open(self, *, patient: bool) -> None:
        """Starts the first driver.

        patient: if Ray is away, retry in the background; otherwise raises the ColibriError of the try.
        """
        first: ColibriError | None = None
        try:
            self._begin()
        except ColibriError as error:
            if not patient:
                raise
            first = error
        self._thread = threading.Thread(target=self._run, args=(first,), name="colibri-ray", daemon=True)
        self._thread.start()

    def call(
        self,
        method: str,
        *arguments: object,
        timeout_s: float | None,
        off: Callable[[], bool] = lambda: False,
    ) -> Any:
        """Calls a method of the driver. Raises RayAway if the driver is gone, or if Ray lost the actor; the typed
        error of the call; DeadlineExpired.

        off: returns whether nobody waits for the answer any more.
        """
        future: Future[Answer] = Future()
        with self._lock:
            connection = self._connection
            if connection is None:
                raise RayAway("Ray is away", peer="ray")
            self._number += 1
            number = self._number
            self._calls[number] = future
        deadline = Deadline.after(timeout_s, self._clock)
        try:
            with self._sending:
                connection.send((number, method, arguments))
            while not wait([future], deadline.bound(_LOOK_S, self._clock)).done:
                if off():
                    raise WorkerLost(f"{method} was called off", peer="ray")
                if deadline.expired(self._clock):
                    raise DeadlineExpired(f"Ray: {method} took more than {timeout_s:g} s", peer="ray")
        except OSError as error:
            raise RayAway(f"Ray's client is gone: {error}", peer="ray") from error
        finally:
            with self._lock:
                self._calls.pop(number, None)
        answer = future.result()
        if answer.error is not None:
            raise answer.error
        if answer.lost:
            raise RayAway(answer.lost, peer="ray")
        return answer.value

    def close(self) -> None:
        """Ends the driver, and with it what it had from Ray. May be called twice."""
        self._closing.set()
        self._hang_up()
        process = self._process
        if process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
            process.kill()
            process.wait()
        if self._thread is not None:
            self._thread.join(_END_S)

    # Its own thread

    def _run(self, first: ColibriError | None) -> None:
        pause_s, failure = _PAUSE_S, first
        while not self._closing.is_set():
            if failure is None:
                self._listen()
                if self._closing.is_set():
                    return
                self._log("Ray's client is gone; workers go on, and a new client joins Ray")
            else:
                self._closing.wait(pause_s)
                pause_s = min(2 * pause_s, _MAX_PAUSE_S)
            try:
                self._begin()
            except ColibriError as error:
                if failure is None or failure.message != error.message:
                    self._log(f"{error.message}; trying again")
                failure = error
            else:
                self._log("joined Ray again")
                pause_s, failure = _PAUSE_S, None

    def _begin(self) -> None:
        """Starts a driver. Raises ColibriError if none comes up."""
        own, other = socket.socketpair()
        with other:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "colibri.cluster.ray.driver", str(other.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                process_group=0,
            )
        connection = Connection(own.detach())
        self._process = process
        try:
            connection.send(self._setup())
            if not self._hears(connection):
                raise ColibriError(f"Ray: not joined within {_JOIN_S:g} s", peer="ray")
            answer: Answer = connection.recv()
            if answer.error is not None:
                raise answer.error
        except (EOFError, OSError) as error:
            process.kill()
            code = process.wait()
            connection.close()
            raise ColibriError(
                f"Ray's client ended with code {code} before it had joined", peer="ray"
            ) from error
        except BaseException:
            process.kill()
            process.wait()
            connection.close()
            raise
        with self._lock:
            self._connection = connection

    def _hears(self, connection: Connection) -> bool:
        until = self._clock() + _JOIN_S
        while self._clock() < until and not self._closing.is_set():
            if connection.poll(_LOOK_S):
                return True
        return False

    def _listen(self) -> None:
        """Reads answers until the driver is gone."""
        with self._lock:
            connection = self._connection
        try:
            while connection is not None:
                answer: Answer = connection.recv()
                with self._lock:
                    future = self._calls.pop(answer.call, None)
                if future is not None:
                    future.set_result(answer)
        except (EOFError, OSError, TypeError):
            pass
        with self._lock:
            self._connection = None
            calls = list(self._calls.values())
            self._calls.clear()
        for future in calls:
            future.set_result(Answer(0, lost="Ray's client is gone"))
        if not self._closing.is_set() and self._process is not None:
            self._process.kill()
            self._process.wait()
            if connection is not None:
                connection.close()

    def _hang_up(self) -> None:
        with self._lock:
            connection = self._connection
        if connection is not None:
            with contextlib.suppress(OSError):
                # The driver sees the end and leaves Ray; so does `_listen`.
                socket.socket(fileno=os.dup(connection.fileno())).shutdown(socket.SHUT_RDWR)
