"""What an operator wants of a cluster, and how each command changes that. Pure: nothing is started or loaded here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice

from colibri.cluster.experts.holders import ExpertId, Holders, holders_of
from colibri.cluster.placing.planner.plan import plan
from colibri.cluster.placing.planner.problem import Loads, Problem, Worker
from colibri.errors import InvalidInput, OverBudget
from colibri.numerics_homes import NumericsHomes
from colibri.placement import Placement
from colibri.suggest import nearest

MAX_WORKERS = 256


@dataclass(frozen=True, slots=True)
class Desired:
    """The wanted state.

    workers: those that are to hold experts, in the order of their numbers.
    drained: workers taken out, which can be brought back by name.
    replicas: wanted holders of each expert, if there are that many workers.
    holders: the placement when all workers live.
    pinned: experts moved by hand; evening out does not move them.
    homes: which workers may hold which experts; None: all.
    """

    workers: tuple[str, ...]
    drained: tuple[str, ...]
    replicas: int
    holders: Holders
    pinned: frozenset[ExpertId] = frozenset()
    loads: Loads | None = None
    facts: Mapping[str, Worker] = field(default_factory=dict)
    expert_bytes: int = 1
    homes: NumericsHomes | None = None

    @classmethod
    def of(
        cls, placement: Placement, replicas: int, expert_bytes: int = 1, homes: NumericsHomes | None = None
    ) -> Desired:
        holders = holders_of(placement)
        return cls(placement.workers, (), replicas, holders, expert_bytes=expert_bytes, homes=homes)

    def drain(self, worker: str) -> Desired:
        """Raises InvalidInput for an unknown or drained worker, and for the last one, also the last of its numerics
        id.
        """
        self._check_known(worker)
        if worker in self.drained:
            raise InvalidInput("worker", "one that is not drained yet", worker)
        if len(self.workers) == 1:
            raise InvalidInput("worker", "one of several workers", f"{worker}, the last one")
        left = tuple(name for name in self.workers if name != worker)
        return replace(self._over(left), drained=in_order((*self.drained, worker)))

    def drain_host(self, host: str) -> Desired:
        """Drains all workers of a host, named as in `status`. Raises InvalidInput if none is left to drain there, or
        none would be left elsewhere.
        """
        going = self._on(host, self.workers)
        if len(going) == len(self.workers):
            raise InvalidInput("host", "one of several hosts with workers", f"{host}, the last one")
        left = tuple(name for name in self.workers if name not in going)
        return replace(self._over(left), drained=in_order((*self.drained, *going)))

    def undrain_host(self, host: str) -> Desired:
        """Brings back the workers of a host. Raises InvalidInput if none is drained there."""
        back = self._on(host, self.drained)
        returned = self._over(in_order((*self.workers, *back)))
        return replace(returned, drained=tuple(name for name in self.drained if name not in back))

    def _on(self, host: str, names: Iterable[str]) -> tuple[str, ...]:
        on = {name: self._worker(name).host for name in names}
        found = tuple(name for name, own in on.items() if own == host)
        if not host or not found:
            hosts = sorted({own for own in on.values() if own})
            expected = f"one of {', '.join(hosts)}" if hosts else "a host of such workers: there is none"
            raise InvalidInput("host", expected, f"{host}{nearest(host, hosts)}")
        return found

    def undrain(self, worker: str) -> Desired:
        """Raises InvalidInput for a worker that is not drained."""
        if worker not in self.drained:
            expected = "a drained worker" + (f" ({', '.join(self.drained)})" if self.drained else "")
            raise InvalidInput("worker", expected, worker)
        back = in_order((*self.workers, worker))
        return replace(self._over(back), drained=tuple(name for name in self.drained if name != worker))

    def scale(self, workers: int, alive: frozenset[str]) -> Desired:
        """Sets the number of workers; drained ones do not count. Raises InvalidInput, also if experts would have no
        home.

        Grows by unused names, lowest number first. Shrinks by dead workers first, then from the highest number
        down.
        """
        if not 1 <= workers <= MAX_WORKERS:
            raise InvalidInput("workers", f"1 to {MAX_WORKERS}", workers)
        if workers > len(self.workers):
            taken = {*self.workers, *self.drained}
            new = islice(_free_names(taken), workers - len(self.workers))
            return self._over(in_order((*self.workers, *new)))
        first_to_stay = sorted(self.workers, key=lambda name: (name not in alive, self.workers.index(name)))
        return self._over(in_order(first_to_stay[:workers]))

    def move(self, expert: ExpertId, to: str, source: str) -> Desired:
        """Makes `to` the expert's first holder and `source` no holder; either may be empty. Raises InvalidInput,
        naming the field.
        """
        layer, number = expert
        if not 0 <= layer < len(self.holders):
            raise InvalidInput("layer", f"0 to {len(self.holders) - 1}", layer)
        if not 0 <= number < len(self.holders[layer]):
            raise InvalidInput("expert", f"0 to {len(self.holders[layer]) - 1}", number)
        if not to and not source:
            raise InvalidInput("to", "a worker to move it to, or one to take it from", "neither")
        names = self.holders[layer][number]
        if to and to not in self.workers:
            raise InvalidInput("to", f"one of {', '.join(self.workers)}", f"{to}{nearest(to, self.workers)}")
        if source and source not in names:
            raise InvalidInput("from", f"a holder of it ({', '.join(names)})", source)
        if to == source:
            raise InvalidInput("from", f"another worker than {to}", source)
        if to and self.homes is not None and not self.homes.may_hold(to, number):
            home = self.homes.experts[number]
            raise InvalidInput(
                "to", f"a worker of {home}, which the expert belongs to", f"{to}, of {self.homes.of(to)}"
            )
        new = (*([to] if to else []), *(name for name in names if name not in (to, source)))
        if not new:
            raise InvalidInput("from", "not the last holder", source)
        # Copies for load may lie side by side; those that stand in for one another must not.
        hosts = {self._worker(name).domain for name in new}
        needed = min(self.replicas, len({self._worker(name).domain for name in names}))
        beside = [name for name in new[1:] if to and self._worker(name).domain == self._worker(to).domain]
        if beside and len(hosts) < needed:
            raise InvalidInput("to", f"a worker on another host than {beside[0]}, which holds it too", to)
        changed = [list(experts) for experts in self.holders]
        changed[layer][number] = new
        holders = tuple(tuple(experts) for experts in changed)
        return replace(self, holders=holders, pinned=self.pinned | {expert})

    def without(self, absent: frozenset[str]) -> Holders:
        """Returns the placement while some workers are absent for long; unchanged if all are.

        It has fewer copies if the others lack memory for all.
        """
        left = [name for name in self.workers if name not in absent]
        if len(left) in (0, len(self.workers)):
            return self.holders
        for replicas in range(self.replicas, 1, -1):
            try:
                return plan(self.problem(left, replicas, even=False)).holders
            except OverBudget:
                continue
        return plan(self.problem(left, 1, even=False)).holders

    def problem(self, workers: Iterable[str], replicas: int | None = None, *, even: bool = True) -> Problem:
        """Returns the planning problem over these workers, with as many copies as wanted or as there are hosts for."""
        chosen = tuple(self._worker(name) for name in workers)
        wanted = self.replicas if replicas is None else replicas
        hosts = len({worker.domain for worker in chosen})
        return Problem(
            chosen,
            self.holders,
            max(1, min(wanted, hosts)),
            self.loads,
            self.expert_bytes,
            self.pinned,
            even=even,
            homes=self.homes,
        )

    @property
    def crowded(self) -> bool:
        """Whether an expert is on fewer hosts than it should be, although there are enough."""
        domain = {
            name: self._worker(name).domain for experts in self.holders for names in experts for name in names
        }
        least = min(self.replicas, len({domain.get(name, name) for name in self.workers}))
        return any(
            len({domain[name] for name in names}) < min(least, len(names))
            for experts in self.holders
            for names in experts
        )

    def speeds(self, workers: Iterable[str]) -> tuple[float, ...]:
        return tuple(self._worker(name).speed for name in workers)

    def _worker(self, name: str) -> Worker:
        return self.facts.get(name, Worker(name))

    def _over(self, workers: tuple[str, ...]) -> Desired:
        if self.homes is not None:
            self.homes.check_present(workers)
        planned = plan(self.problem(workers))
        return replace(self, workers=workers, holders=planned.holders, loads=planned.loads)

    def _check_known(self, worker: str) -> None:
        known = (*self.workers, *self.drained)
        if worker not in known:
            raise InvalidInput("worker", f"one of {', '.join(known)}", f"{worker}{nearest(worker, known)}")


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Sorts names so that w2 comes before w10."""
    return tuple(sorted(names, key=lambda name: (len(name), name)))


def _free_names(taken: set[str]) -> Iterator[str]:
    return (name for name in (f"w{number}" for number in count()) if name not in taken)
