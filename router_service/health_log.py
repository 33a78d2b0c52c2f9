"""Tells, in the log, when a worker goes out of use, why, and when it is back."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from colibri.router_service.stats import HealthState

#: States in which rows go to a worker.
_IN_USE = (HealthState.HEALTHY, HealthState.SUSPECT)


class HealthLog:
    """Of one thread. A worker that stays out is told again only for another reason."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log = log
        #: By worker that is out: the reason that was told.
        self._told: dict[str, str] = {}

    def look(self, workers: Mapping[str, tuple[HealthState, str]]) -> None:
        for name, (state, reason) in workers.items():
            if state in _IN_USE:
                if self._told.pop(name, None) is not None:
                    self._log(f"router: worker {name} is in use again")
            elif state in (HealthState.EJECTED, HealthState.LOST) and self._told.get(name) != reason:
                self._told[name] = reason
                self._log(f"router: worker {name} is {state.value}: {reason}")
        for name in self._told.keys() - workers.keys():
            del self._told[name]
