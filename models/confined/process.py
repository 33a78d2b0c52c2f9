"""The parent's side of confined processes: start them, ask them, end and replace them."""

from __future__ import annotations

import contextlib
import enum
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
import weakref
from dataclasses import asdict, dataclass
from typing import Any

from colibri.deadline import Deadline
from colibri.errors import Busy, CheckpointError, ColibriError, DeadlineExpired
from colibri.models.confined.child import LENGTHS, Message, on_the_clock

#: From the start of a process until it has read its first message.
_START_S = 20.0
#: What a process gets to report or to die after its own limit.
_GRACE_S = 2.0
#: Of a reply; children refuse what would be longer in their own words.
_MAX_REPLY = 192 << 20
#: Messages above this go to a process of their own, so that no short one waits for them.
SHORT_BYTES = 16 << 10
#: That process ends when nothing came for so long.
_IDLE_S = 30.0
#: What a child sees of the environment: no token, key or address that the parent was given.
_ENVIRONMENT = ("PATH", "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a confined process.

    load_s, answer_s: seconds of CPU time; several times as much on the clock.
    load_bytes, answer_bytes: memory beyond what the process has when it starts, or when it has loaded.
    """

    load_s: float
    answer_s: float
    load_bytes: int
    answer_bytes: int


class Fault(enum.Enum):
    """Why a process gave no answer."""

    TIME = "it used up its CPU time"
    MEMORY = "it used up its memory"
    DIED = "it ended by itself"


class NoAnswer(ColibriError):
    """A confined process gave no answer; the next message gets another process."""

    def __init__(self, what: str, fault: Fault, code: int) -> None:
        super().__init__(f"{what}: its process ended with code {code}")
        self.fault = fault


class _TimeUp(Exception):
    """The parent stopped waiting before anything came."""


class _Process:
    """One child at a time. idle_s: it ends when nothing came for this long."""

    def __init__(
        self, what: str, module: str, first: Message, limits: Limits, idle_s: float | None = None
    ) -> None:
        self._what = what
        self._module = module
        self._first = ({**first[0], "limits": {**asdict(limits), "idle_s": idle_s}}, first[1])
        self._limits = limits
        self._lock = threading.Lock()
        self._live: list[subprocess.Popen[bytes]] = []
        self._closed = False
        # Whoever forgets to close leaves no process behind.
        self._finalize = weakref.finalize(self, _end_all, self._live)

    @property
    def pid(self) -> int | None:
        # Of a copy: whoever asks may end the process meanwhile.
        return next((process.pid for process in tuple(self._live)), None)

    def start(self) -> Message:
        with self._lock:
            return self._start()

    def ask(self, message: Message, deadline: Deadline) -> Message:
        wait_s = deadline.bound(2 * self._limits.answer_s + _GRACE_S)
        if not self._lock.acquire(timeout=wait_s):
            raise Busy(f"{self._what}: others took more than {wait_s:.1f} s", retry_after_s=1.0)
        try:
            if self._live and self._live[0].poll() is not None:
                self._end(self._live[0])
            if not self._live:
                self._start()
            process = self._live[0]
            reply = self._exchange(process, message, self._limits.answer_s, deadline)
            # It had been idle and left just now, or was killed, as the kernel does for want of memory.
            if reply is None and self._end(process) in (0, -signal.SIGKILL):
                self._start()
                process = self._live[0]
                reply = self._exchange(process, message, self._limits.answer_s, deadline)
            if reply is None:
                code = self._end(process)
                if code == -signal.SIGALRM:
                    raise _TimeUp
                raise NoAnswer(self._what, _fault(code), code)
        except _TimeUp:
            for left in tuple(self._live):
                self._end(left)
            if deadline.expired():
                raise DeadlineExpired(
                    f"{self._what}: the request's time ended while it was computed"
                ) from None
            raise Busy(f"{self._what}: no answer in time, the machine is busy", retry_after_s=1.0) from None
        finally:
            self._lock.release()
        if "memory" in reply[0]:
            raise NoAnswer(self._what, Fault.MEMORY, 0)
        return reply

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for process in tuple(self._live):
                self._end(process)

    def _start(self) -> Message:
        if self._closed:
            raise ColibriError(f"{self._what}: its process is closed")
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", self._module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C at a terminal is for the program, not for each of its processes
            env=_environment(),
        )
        self._live.append(process)
        try:
            reply = self._exchange(process, self._first, self._limits.load_s, Deadline(), _START_S)
        except _TimeUp:
            self._end(process)
            raise Busy(f"{self._what}: its process did not start in time", retry_after_s=1.0) from None
        if reply is None:
            code = self._end(process)
            fault = _fault(code)
            if fault is Fault.TIME or code == -signal.SIGALRM:
                expected, got = f"one that compiles within {self._limits.load_s:g} s", "no end"
                raise CheckpointError.of(self._what, "", expected, got)
            if fault is Fault.MEMORY:
                raise self._too_large()
            raise CheckpointError(f"{self._what}: its process ended with code {code}")
        if "error" in reply[0] or "memory" in reply[0]:
            self._end(process)
            raise CheckpointError(reply[0]["error"]) if "error" in reply[0] else self._too_large()
        return reply

    def _too_large(self) -> CheckpointError:
        most = self._limits.load_bytes >> 20
        return CheckpointError.of(self._what, "", f"one that takes at most {most} MiB of memory", "more")

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """Ends the process. Returns its exit code; -SIGKILL if it had to be killed, even if it is not gone yet."""
        if process in self._live:
            self._live.remove(process)
        return _end(process)

    def _exchange(
        self,
        process: subprocess.Popen[bytes],
        message: Message,
        cpu_s: float,
        deadline: Deadline,
        more_s: float = 0.0,
    ) -> Message | None:
        """Returns the reply; None if the process died. Raises _TimeUp if it exceeds its limits or the deadline."""
        until = time.monotonic() + deadline.bound(on_the_clock(cpu_s) + _GRACE_S + more_s)
        if process.stdin is None or process.stdout is None:
            return None
        head = json.dumps(message[0], ensure_ascii=False).encode("utf-8", "surrogatepass")
        parts = [memoryview(LENGTHS.pack(len(head), len(message[1])) + head), memoryview(message[1])]
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            for pipe, event in (
                (process.stdin, selectors.EVENT_WRITE),
                (process.stdout, selectors.EVENT_READ),
            ):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, event)
            while (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.fileobj is process.stdin:
                        try:
                            parts[0] = parts[0][os.write(key.fd, parts[0]) :]
                        except BrokenPipeError:
                            return None
                        while parts and not parts[0]:
                            parts.pop(0)
                        if not parts:
                            selector.unregister(process.stdin)
                        continue
                    part = os.read(key.fd, 1 << 16)
                    if not part:
                        return None
                    received += part
                if len(received) >= LENGTHS.size:
                    size, more = LENGTHS.unpack_from(received)
                    if size + more > _MAX_REPLY:
                        return None
                    if len(received) == LENGTHS.size + size + more:
                        body = memoryview(received)[LENGTHS.size :]
                        return json.loads(bytes(body[:size])), bytes(body[size:])
        raise _TimeUp


class Confined:
    """Somebody else's program, ready for messages. Thread-safe.

    One process always lives and answers short messages, one after another. A second process lives while there are
    long messages, so that no short one waits for them.

    what: its name in errors.
    module: the child's module, which calls `serve`.
    first: the message that brings the program.

    Raises CheckpointError if the program does not load within the limits.
    """

    def __init__(self, what: str, module: str, first: Message, limits: Limits) -> None:
        self._short = _Process(what, module, first, limits)
        self._long = _Process(what, module, first, limits, _IDLE_S)
        self.first_reply = self._short.start()

    @property
    def pids(self) -> list[int]:
        """Returns the ids of the live processes."""
        return [pid for each in (self._short, self._long) if (pid := each.pid) is not None]

    def ask(self, head: dict[str, Any], blob: bytes, deadline: Deadline, size: int) -> Message:
        """Asks for an answer.

        size: bytes that decide whether the message counts as short.

        Raises NoAnswer, DeadlineExpired, and Busy if other callers take all the time or the machine has none.
        """
        process = self._short if size <= SHORT_BYTES else self._long
        return process.ask((head, blob), deadline)

    def close(self) -> None:
        """Ends the processes. Nothing may be asked afterwards."""
        self._short.close()
        self._long.close()


def _environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    # One thread and one heap: each further one reserves address space, which is bounded.
    return kept | {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MALLOC_ARENA_MAX": "1"}


def _fault(code: int) -> Fault:
    return {-signal.SIGPROF: Fault.TIME, -signal.SIGABRT: Fault.MEMORY}.get(code, Fault.DIED)


def _end(process: subprocess.Popen[bytes]) -> int:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
    try:
        return process.wait(0.2)
    except subprocess.TimeoutExpired:
        process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE_S)
    return -signal.SIGKILL


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        _end(process)
    processes.clear()
