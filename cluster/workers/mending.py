"""Correct a live worker's state: load experts that it lost, serve epochs that it refuses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from colibri.cluster.experts.contents import Contents
from colibri.cluster.workers.expert_calls import ask_status, load_experts, serve_epochs
from colibri.cluster.workers.remedies import Remedies, Remedy
from colibri.cluster.workers.worker_state import Difference, Wanted, compare
from colibri.deadline import Clock, Deadline
from colibri.errors import ColibriError
from colibri.placement import WorkerEndpoint
from colibri.v1 import expert_pb2

#: Of each small call, seconds.
_ANSWER_S = 3.0


@dataclass(frozen=True, slots=True)
class Mended:
    """times: corrections so far. last: what was wrong the last time; empty: nothing yet."""

    times: int = 0
    last: str = ""


class Mender:
    """Corrects one incarnation of a worker. `heard` gets each of its statuses, on one thread. Slow work runs on
    another thread, which ends with the worker's answers or by its bounds.

    wanted: returns what is wanted now.
    renew: called when the state is right again, so that routers ask the worker again.
    """

    def __init__(
        self,
        endpoint: WorkerEndpoint,
        wanted: Callable[[], Wanted],
        remedies: Remedies,
        renew: Callable[[], object],
        told: Callable[[Mended], None],
        contents: Contents,
        load_s: float,
        log: Callable[[str], None],
        clock: Clock,
        before: Mended,
    ) -> None:
        self._endpoint = endpoint
        self._wanted = wanted
        self._remedies = remedies
        self._renew = renew
        self._told = told
        self._contents = contents
        self._load_s = load_s
        self._log = log
        self._clock = clock
        self._mended = before
        self._thread: threading.Thread | None = None
        self._said = ""

    def heard(self, said: expert_pb2.StatusReply) -> tuple[Difference, str]:
        """Returns what differs, and why the worker must be restarted; empty: it need not."""
        difference = compare(self._wanted(), said)
        if not difference.wrong:
            self._said = ""
            return difference, ""
        if self._thread is not None and self._thread.is_alive():
            return difference, ""
        remedy = self._remedies.next(difference.other)
        if remedy is Remedy.RESTART:
            return difference, difference.text
        if remedy is Remedy.MEND:
            name = f"colibri-mend-{self._endpoint.name}"
            self._thread = threading.Thread(target=self._try, name=name, daemon=True)
            self._thread.start()
        elif self._said != difference.text:
            self._said = difference.text
            self._log(
                f"worker {self._endpoint.name}: {difference.text}, again and again: put right less often"
            )
        return difference, ""

    def _try(self) -> None:
        try:
            self._mend()
        except ColibriError as error:
            self._remedies.failed()
            self._log(f"worker {self._endpoint.name}: its state could not be put right: {error.message}")
        except Exception as error:  # of ours; the next status tries again, within the same bounds
            self._remedies.failed()
            self._log(f"worker {self._endpoint.name}: its state could not be put right: {error!r}")

    def _mend(self) -> None:
        # What a status said may be older than a change of placement: the second look decides.
        wanted, found = self._look()
        if not found.wrong or found.other:
            return
        deadline = Deadline.after(self._load_s, self._clock)
        if found.refuses:
            serve_epochs(self._endpoint, wanted.epoch, _ANSWER_S)
        if found.missing:
            load_experts(
                self._endpoint,
                found.missing,
                wanted.epoch,
                deadline,
                lambda step: None,
                contents=self._contents,
            )
        self._renew()
        _, left = self._look()
        if left.wrong and left.text == found.text:
            self._remedies.failed()
            self._log(f"worker {self._endpoint.name}: {found.text}: a try to put that right changed nothing")
            return
        self._remedies.mended()
        self._mended = Mended(self._mended.times + 1, found.text)
        self._told(self._mended)
        done = f"{len(found.missing)} experts loaded again" if found.missing else "it serves that again"
        self._log(f"worker {self._endpoint.name}: {found.text}: put right, {done}")

    def _look(self) -> tuple[Wanted, Difference]:
        """Compares the worker with one placement, and asks it again while that changes."""
        while True:
            wanted = self._wanted()
            said = ask_status(
                self._endpoint.target,
                f"worker {self._endpoint.name}",
                _ANSWER_S,
                security=self._endpoint.security,
                experts=True,
            )
            if self._wanted().epoch == wanted.epoch:
                return wanted, compare(wanted, said)
