"""One incarnation of one worker process: start it, hear that it is ready, watch it, stop it. Every wait is bounded and
names the worker.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from colibri.cluster.machine.memory_kills import count_kills, memory_death
from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.deadline import Clock
from colibri.errors import DeadlineExpired, WorkerLost
from colibri.security.plane_secret import PlaneSecret

#: Lines of a worker's stderr that are kept for its error message.
_TAIL_LINES = 12
_MAX_LINE = 8192
_KILL_WAIT_S = 10.0
#: Where a process has not answered in time.
START_ADVICE = "on a busy machine, give --start-timeout more seconds or start fewer --workers"
#: By which a worker is told the descriptor of its deployment's secret.
SECRET_OPTION = "--worker-secret-fd"
#: Of a worker that is not pinned.
ANYWHERE = WorkerPinning(numa_node=-1, cpus=(), threads=1, oversubscribed=False)


@dataclass(frozen=True, slots=True)
class Ready:
    """What a worker prints on stdout once it serves, as one line of JSON."""

    target: str
    incarnation: int
    pid: int

    @classmethod
    def parse(cls, line: str) -> Ready | None:
        """Reads the line; None if it is something else."""
        try:
            fields = json.loads(line)
            target, incarnation, pid = fields["target"], fields["incarnation"], fields["pid"]
        except (ValueError, KeyError, TypeError):
            return None
        if not (isinstance(target, str) and isinstance(incarnation, int) and isinstance(pid, int)):
            return None
        return cls(target, incarnation, pid)


class WorkerProcess:
    """Starts `argv` at once. A thread of its own reads the output and notices the end.

    secret: of the deployment; the worker reads it from an inherited descriptor, so it is neither on its command
        line nor in its environment.
    log: gets each line of its stderr.
    on_exit: called once on that thread, within milliseconds of the end.

    The thread that makes this must live as long as the worker: a worker dies with the thread that started it
    (PR_SET_PDEATHSIG looks at the parent's thread, not at its process).
    """

    taken_over = False

    def __init__(
        self,
        name: str,
        incarnation: int,
        argv: Sequence[str],
        *,
        log: Callable[[str], None],
        on_exit: Callable[[WorkerProcess], None],
        place: WorkerPinning = ANYWHERE,
        env: Mapping[str, str] | None = None,
        secret: PlaneSecret | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.name = name
        self.place = place
        self.incarnation = incarnation
        self._log = log
        self._on_exit = on_exit
        self._clock = clock
        self._changed = threading.Condition()
        self._ready: Ready | None = None
        self._tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._returncode: int | None = None
        self._kills = count_kills()
        # A process group of its own: Ctrl-C in the terminal goes to the launcher alone, which ends its workers in
        # order. No session of its own: the kernel would share CPUs out among sessions first (autogroup, man 7
        # sched), and the priorities of their threads would mean nothing beside each other.
        handed = () if secret is None else (secret.hand_over(),)
        try:
            self._process = subprocess.Popen(
                [*argv, *(f"{SECRET_OPTION}={descriptor}" for descriptor in handed)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                process_group=0,
                pass_fds=handed,
                env=env,
            )
        finally:
            for descriptor in handed:
                os.close(descriptor)
        try:
            # Opened before anything can reap the child, so it can only mean this very process.
            self._pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.communicate(timeout=_KILL_WAIT_S)
            raise
        self._watcher = threading.Thread(target=self._watch, name=f"colibri-watch-{name}", daemon=True)
        self._watcher.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, as in subprocess (negative: the signal that ended it); None while it runs."""
        return self._returncode

    @property
    def ended(self) -> bool:
        return self._returncode is not None

    def wait_ready(self, timeout_s: float) -> Ready:
        """Returns its ready line. Raises WorkerLost if it ended first, or DeadlineExpired; both name the worker."""
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._returncode is not None, timeout_s)
            if self._returncode is not None:
                raise self.lost("before it was ready")
            if self._ready is None:
                late = f"worker {self.name} (pid {self.pid}) was not ready within {timeout_s:g} s; {START_ADVICE}"
                raise DeadlineExpired(late + self._last_words(), peer=self.name)
            return self._ready

    def wait_exit(self, timeout_s: float | None = None) -> bool:
        """Waits for the end; None: without a bound. Returns whether it has ended."""
        with self._changed:
            return self._changed.wait_for(lambda: self._returncode is not None, timeout_s)

    def terminate(self) -> None:
        """Asks it to end (SIGTERM) and returns at once."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Forces it to end (SIGKILL), and returns at once."""
        self._signal(signal.SIGKILL)

    def stop(self, grace_s: float) -> None:
        """Ends it: SIGTERM, after `grace_s` seconds SIGKILL. Returns when it is reaped and its pipes are closed."""
        self.terminate()
        if not self.wait_exit(grace_s):
            self.kill()
            self.wait_exit(_KILL_WAIT_S)
        if threading.current_thread() is not self._watcher:
            self._watcher.join(_KILL_WAIT_S)

    def lost(self, when: str) -> WorkerLost:
        """Returns the error for its end, with how it ended and its last words."""
        why = memory_death(self._kills) if self._returncode == -signal.SIGKILL else ""
        how = f"{describe_end(self._returncode)} {when}{f': {why}' if why else ''}"
        end = f"worker {self.name} (pid {self.pid}) {how}"
        return WorkerLost(end + self._last_words(), peer=self.name)

    @property
    def said(self) -> str:
        """The last lines of its stderr, as one."""
        with self._changed:
            return " | ".join(self._tail)

    def _signal(self, number: signal.Signals) -> None:
        with self._changed:
            if self._returncode is None:
                try:
                    signal.pidfd_send_signal(self._pidfd, number)
                except ProcessLookupError:
                    return  # it has just ended; the watcher will say so

    def _last_words(self) -> str:
        said = self.said
        return f"; it said: {said}" if said else ""

    def _watch(self) -> None:
        stdout, stderr = self._process.stdout, self._process.stderr
        if stdout is None or stderr is None:
            raise RuntimeError("the pipes were asked for")
        with selectors.DefaultSelector() as selector:
            lines = {
                stdout.fileno(): _Lines(self._take_output),
                stderr.fileno(): _Lines(self._take_complaint),
            }
            for fd in lines:
                os.set_blocking(fd, False)
                selector.register(fd, selectors.EVENT_READ)
            selector.register(self._pidfd, selectors.EVENT_READ)
            ended = False
            while not ended:
                for key, _ in selector.select():
                    if key.fd == self._pidfd:
                        ended = True
                    elif not lines[key.fd].pump(key.fd):
                        selector.unregister(key.fd)
            for fd, buffer in lines.items():
                buffer.pump(fd)
        returncode = self._process.wait()
        stdout.close()
        stderr.close()
        with self._changed:
            self._returncode = returncode
            os.close(self._pidfd)
        try:
            self._on_exit(self)
        finally:
            with self._changed:
                self._changed.notify_all()

    def _take_output(self, line: str) -> None:
        ready = Ready.parse(line) if self._ready is None else None
        if ready is None or ready.incarnation != self.incarnation:
            self._take_complaint(line)
            return
        with self._changed:
            self._ready = ready
            self._changed.notify_all()

    def _take_complaint(self, line: str) -> None:
        with self._changed:
            self._tail.append(line)
        with contextlib.suppress(OSError):  # a log that cannot be written must not end the watch
            self._log(f"{self.name}: {line}")


def describe_end(returncode: int | None) -> str:
    """Describes an exit status: `exited with code 1`, `was killed by SIGKILL`."""
    if returncode is None:
        return "still runs"
    if returncode >= 0:
        return f"exited with code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


class _Lines:
    """Cuts the output of a non-blocking pipe into lines of bounded length."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take = take
        self._rest = b""

    def pump(self, fd: int) -> bool:
        """Reads what is there, at most what a pipe holds. Returns False at the end of the pipe."""
        try:
            piece = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if not piece or len(self._rest) > _MAX_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            if text := line[:_MAX_LINE].decode(errors="replace").rstrip():
                self._take(text)
        return bool(piece)
