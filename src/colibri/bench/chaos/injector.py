"""Make one scheduled event happen, to the victim that its own draw chooses, and say how it is undone."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable
from dataclasses import dataclass

from colibri.bench.chaos.network.base import Network
from colibri.bench.chaos.operator import Operator, find, in_use, serving
from colibri.bench.chaos.plan import ANY, WORKER_FAULTS, Action, LinkQuality
from colibri.bench.chaos.processes import send
from colibri.bench.chaos.schedule import Scheduled
from colibri.bench.chaos.worker_faults import WorkerFaults
from colibri.errors import ColibriError
from colibri.v1 import operator_pb2 as pb

#: Of one change of the placement.
CHANGE_S = 120.0


@dataclass(frozen=True, slots=True)
class Done:
    """An event that was done. undo: None if there is nothing to undo; returns what to note."""

    worker: str
    text: str
    undo: Callable[[], str] | None = None


class Injector:
    """Makes events happen. `act` raises ColibriError if it fails, and then nothing is in force.

    quality: of the links while nobody makes them worse.
    """

    def __init__(
        self,
        operator: Operator,
        faults: WorkerFaults,
        network: Network | None,
        quality: LinkQuality | None = None,
    ) -> None:
        self._operator = operator
        self._faults = faults
        self._network = network
        self._quality = quality or LinkQuality()

    def act(self, event: Scheduled) -> Done:
        action = event.spec.action
        if action is Action.SCALE:
            return self._scale(event)
        if action is Action.MOVE:
            return self._move(event)
        worker = self._choose(event)
        if action is Action.KILL:
            send(worker, signal.SIGKILL)
            return Done(worker.name, f"kill -9 {worker.name} (pid {worker.pid})")
        if action is Action.STOP:
            send(worker, signal.SIGSTOP)
            return Done(worker.name, f"stop {worker.name} (pid {worker.pid})", lambda: _go_on(worker))
        if action is Action.DRAIN:
            return self._drain(worker)
        if action in WORKER_FAULTS:
            return self._fault(event, worker)
        return self._link(event, worker)

    def _choose(self, event: Scheduled) -> pb.WorkerInfo:
        """Returns the named worker, or one that serves and that the router uses."""
        status = self._operator.status()
        if event.spec.worker != ANY:
            return find(status, event.spec.worker)
        candidates = in_use(status)
        if not candidates:
            raise ColibriError("no worker serves")
        return random.Random(event.draw).choice(candidates)

    def _fault(self, event: Scheduled, worker: pb.WorkerInfo) -> Done:
        self._faults.add(worker, event.number, event.spec, event.draw)
        word = event.spec.action.value

        def undo() -> str:
            self._faults.remove(worker, event.number)
            return f"{worker.name}: no more {word}"

        share = "" if event.spec.probability == 1 else f", {event.spec.probability:.0%} of its answers"
        return Done(worker.name, f"{word} {worker.name}{share}", undo)

    def _link(self, event: Scheduled, worker: pb.WorkerInfo) -> Done:
        network, link = self._network, event.spec.link
        if network is None:
            raise ColibriError("there is no network to change")
        if link is None:
            network.set_up(worker.name, False)

            def up() -> str:
                network.set_up(worker.name, True)
                return f"link of {worker.name} up"

            return Done(worker.name, f"link of {worker.name} down", up)
        network.shape(worker.name, link)

        def restore() -> str:
            network.shape(worker.name, self._quality)
            return f"link of {worker.name} as it was"

        return Done(worker.name, f"link of {worker.name}: {_describe(link)}", restore)

    def _drain(self, worker: pb.WorkerInfo) -> Done:
        progress = self._operator.drain(worker.name, False, CHANGE_S)

        def undo() -> str:
            back = self._operator.drain(worker.name, True, CHANGE_S)
            return f"{worker.name} is back (epoch {back.epoch})"

        return Done(worker.name, f"drained {worker.name} (epoch {progress.epoch})", undo)

    def _scale(self, event: Scheduled) -> Done:
        progress = self._operator.scale(event.spec.workers, CHANGE_S)
        return Done("", f"scaled to {event.spec.workers} workers (epoch {progress.epoch})")

    def _move(self, event: Scheduled) -> Done:
        status = self._operator.status(experts=True)
        move = choose_move(status, event)
        progress = self._operator.move(move.layer, move.expert, move.to, move.source, CHANGE_S)
        text = f"moved {move.layer}:{move.expert} from {move.source} to {move.to} (epoch {progress.epoch})"
        return Done(move.to, text)


@dataclass(frozen=True, slots=True)
class Move:
    layer: int
    expert: int
    source: str
    to: str


def choose_move(status: pb.ClusterStatusReply, event: Scheduled) -> Move:
    """Returns an expert, a serving worker that does not hold it, and a holder that gives it up. Raises ColibriError if
    every worker holds everything.
    """
    draw, spec = random.Random(event.draw), event.spec
    held = {worker.name: set(worker.held) for worker in serving(status)}
    experts = sorted(set().union(*held.values()), key=lambda text: tuple(map(int, text.split(":"))))
    wanted = [
        expert
        for expert in experts
        if (spec.layer is None or expert.split(":")[0] == str(spec.layer))
        and (spec.expert is None or expert.split(":")[1] == str(spec.expert))
    ]
    choices = [
        (expert, [name for name in held if expert not in held[name] and spec.to in (None, name)])
        for expert in wanted
    ]
    choices = [(expert, targets) for expert, targets in choices if targets]
    if not choices:
        raise ColibriError("nothing can be moved: every worker that may take an expert holds it already")
    expert, targets = draw.choice(choices)
    to = draw.choice(targets)
    source = draw.choice([name for name in held if expert in held[name]])
    layer, number = map(int, expert.split(":"))
    return Move(layer, number, source, to)


def _go_on(worker: pb.WorkerInfo) -> str:
    send(worker, signal.SIGCONT)
    return f"{worker.name} goes on"


def _describe(link: LinkQuality) -> str:
    words = [f"{link.delay_s * 1e3:g} ms each way"] if link.delay_s else []
    words += [f"{link.loss:.1%} lost"] if link.loss else []
    words += [f"{link.rate_bits / 1e6:g} Mbit/s"] if link.rate_bits is not None else []
    return ", ".join(words)
