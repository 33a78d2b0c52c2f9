"""PlacementManager: the thread that keeps a placement while requests run, and carries out commands one at a time."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.placing.commands import Command, Place, Ticket
from colibri.cluster.placing.desired import Desired
from colibri.cluster.placing.kept.keeping import DesiredKeeper
from colibri.cluster.placing.proposal import Proposal, propose
from colibri.cluster.placing.rebalancer import Rebalancer, RebalanceView
from colibri.cluster.placing.reconcile import ManagerOptions, Reconciler, Workforce
from colibri.cluster.placing.transaction import Step
from colibri.deadline import Clock, Deadline
from colibri.errors import Busy, ColibriError, DeadlineExpired, InvalidInput, ShuttingDown

_MAX_WAITING = 8
#: How often, at most, the thread looks around when nobody wakes it, seconds.
_LOOK_S = 0.5
_POLL_S = 0.05
_CLOSE_S = 20.0


@dataclass(frozen=True, slots=True)
class ManagerView:
    """The manager's state, for status.

    change: the one in progress; empty: none.
    last_error: why the last failed change failed.
    kept_in: where the wanted state is kept; empty: nowhere.
    kept_trouble: why it is not kept; empty: it is.
    """

    desired: Desired
    draining: frozenset[str]
    change: str
    last_error: str
    rebalance: RebalanceView | None
    kept_in: str = ""
    kept_trouble: str = ""


class PlacementManager:
    """Starts at once. Call `close` before the workforce ends.

    places: returns pinnings for new workers, given their names and the pinnings in use; raises ColibriError if
        there are none.
    keeper: gets the wanted state after each command that was carried out.
    """

    def __init__(
        self,
        workforce: Workforce,
        desired: Desired,
        places: Callable[[Sequence[WorkerPinning], Sequence[str]], Sequence[WorkerPinning]],
        options: ManagerOptions | None = None,
        *,
        rebalancer: Rebalancer | None = None,
        keeper: DesiredKeeper | None = None,
        log: Callable[[str], None] = lambda line: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._workforce = workforce
        self._places = places
        self._options = options or ManagerOptions()
        self._keeper = keeper
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: deque[Ticket] = deque()
        self._draining: frozenset[str] = frozenset()
        self._closing = threading.Event()
        self._rebalancer = rebalancer
        self._state = Reconciler(workforce, desired, self._options, self._closing, log, clock)
        self._wake = threading.Event()
        workforce.publisher.listen(self._wake.set)
        self._thread = threading.Thread(target=self._run, name="colibri-placement", daemon=True)
        self._thread.start()

    # Any thread

    def submit(self, command: Command, timeout_s: float = 0.0) -> Ticket:
        """Queues a command. Raises Busy or ShuttingDown. timeout_s: 0: the default bound."""
        deadline = Deadline.after(timeout_s or self._options.command_s, self._clock)
        ticket = Ticket(command, deadline)
        with self._lock:
            if self._closing.is_set():
                raise ShuttingDown("no more changes: the deployment is shutting down")
            if len(self._waiting) >= _MAX_WAITING:
                raise Busy(f"{_MAX_WAITING} changes wait already", retry_after_s=1.0)
            self._waiting.append(ticket)
        self._wake.set()
        return ticket

    def view(self) -> ManagerView:
        state, rebalancer, keeper = self._state, self._rebalancer, self._keeper
        return ManagerView(
            state.desired,
            self._draining,
            state.change,
            state.last_error,
            None if rebalancer is None else rebalancer.view(),
            "" if keeper is None else keeper.where,
            "" if keeper is None else keeper.trouble,
        )

    def place(self) -> Place:
        """Returns the command that plans for what was measured so far. Raises InvalidInput if nothing was."""
        if self._rebalancer is None:
            raise InvalidInput("loads", "a deployment that measures them", "one that does not")
        return Place(self._rebalancer.measured(), self._rebalancer.options.policy)

    def proposal(self) -> Proposal:
        """Returns what that command would do now."""
        command = self.place()
        current = self._workforce.publisher.current.placement
        return propose(self._state.informed(), current, command.loads, command.policy)

    def close(self) -> None:
        """Takes no more changes and undoes one in progress. May be called twice."""
        self._closing.set()
        self._wake.set()
        self._thread.join(_CLOSE_S)
        with self._lock:
            left = list(self._waiting)
            self._waiting.clear()
        for ticket in left:
            ticket.end(ShuttingDown("the deployment is shutting down"))

    # Its own thread

    def _run(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(_LOOK_S)
            self._wake.clear()
            try:
                if not self._state.settle():
                    self._wake.set()
                    continue
                with self._lock:
                    ticket = self._waiting.popleft() if self._waiting else None
                if ticket is not None:
                    self._wake.set()  # there may be more
                    self._execute(ticket)
                else:
                    self._rebalance()
            except ShuttingDown:
                return
            except Exception as error:  # a fault of ours must not end the minding of workers
                self._state.failed(ColibriError(f"internal error ({error!r})"))
                self._log(f"placement: unexpected error: {error!r}")
                self._state.wish(self._state.desired)

    def _rebalance(self) -> None:
        """Rebalances if it is due, all workers live, and it is worth it."""
        rebalancer, state = self._rebalancer, self._state
        if rebalancer is None or not rebalancer.due(self._workforce.pins().values()):
            return
        desired, current = state.informed(), self._workforce.publisher.current
        if not current.endpoints.keys() >= set(desired.workers):
            return
        proposal = rebalancer.look(desired, current.placement)
        if proposal is not None and proposal.desired.loads is not None:
            self._log(f"rebalancing: {rebalancer.view().last}")
            command = Place(proposal.desired.loads, rebalancer.options.policy)
            if self._execute(Ticket(command, Deadline.after(self._options.command_s, self._clock))):
                rebalancer.changed()

    def _execute(self, ticket: Ticket) -> bool:
        """Carries out a command. Returns whether it was done."""
        before = self._state.informed()
        try:
            after = ticket.command.apply(before, self._state.alive())
            self._draining = frozenset(before.workers) - frozenset(after.workers)
            self._start(after, ticket)
            self._state.wish(after)
            while not self._state.converge(self._state.absent(), ticket):
                self._pause(ticket.deadline)
        except ColibriError as error:
            # Workers that it has started are let go when nothing lies on them.
            self._state.wish(before)
            if not isinstance(error, InvalidInput):
                self._state.failed(error)
            self._log(f"{ticket.command.text}: taken back: {error.message}")
            ticket.end(error)
            if isinstance(error, ShuttingDown):
                raise
            return False
        except BaseException:
            self._state.wish(before)
            ticket.end(ColibriError(f"{ticket.command.text}: internal error"))
            raise
        else:
            self._state.let_go()
            if self._keeper is not None:
                self._keeper.keep(after)
            self._log(f"{ticket.command.text}: done, epoch {self._state.epoch}")
            ticket.end()
            return True
        finally:
            self._state.change = ""
            self._draining = frozenset()
            self._wake.set()

    def _start(self, after: Desired, ticket: Ticket) -> None:
        """Starts new workers. Returns when all of them are in the directory, without experts yet."""
        taken = self._workforce.pins()
        names = [name for name in after.workers if name not in taken]
        if not names:
            return
        chosen = self._places(list(taken.values()), names)
        for name, pin in zip(names, chosen, strict=True):
            self._workforce.add(name, pin)
        self._state.reporter(ticket)(Step("prepare", f"starting {', '.join(names)}", epoch=self._state.epoch))
        bound = Deadline.after(self._options.start_s, self._clock).earlier(ticket.deadline)
        while not all(self._workforce.is_up(name) for name in names):
            self._pause(bound, f"{', '.join(names)} did not come up")

    def _pause(self, deadline: Deadline, what: str = "the change was not done") -> None:
        """Waits briefly during a command; meanwhile rescues lost experts."""
        if self._closing.is_set():
            raise ShuttingDown("the deployment is shutting down")
        if deadline.expired(self._clock):
            raise DeadlineExpired(f"{what} in time")
        self._wake.wait(_POLL_S)
        self._wake.clear()
        if self._state.urgent():
            self._state.rescue()
