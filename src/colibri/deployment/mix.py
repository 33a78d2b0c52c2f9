"""Decide the numerics of a deployment's experts if its workers may differ: each expert's home, the id of the whole,
and what the operator is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from colibri.cluster.workers.worker_state import Identities
from colibri.deployment.devices import Kind, WorkerKinds
from colibri.errors import ConfigError
from colibri.numerics import ExpertNumerics, MixedNumerics
from colibri.numerics_homes import OPTION, NumericsHomes, assign_homes, spread_by_home
from colibri.placement import Placement, spread


@dataclass(frozen=True, slots=True)
class Mix:
    """The numerics of a deployment.

    numerics: of all experts together.
    usual: the id that a worker must have unless `homes` gives another.
    homes: None: all workers have `usual`.
    """

    numerics: ExpertNumerics | MixedNumerics
    usual: str
    homes: NumericsHomes | None = None

    def spread(self, layers: int, experts: int, workers: Sequence[str], replicas: int = 1) -> Placement:
        """Returns the first placement. Raises InvalidInput for more replicas than an id has workers."""
        if self.homes is None:
            return spread(layers, experts, workers, replicas)
        return spread_by_home(layers, workers, self.homes, replicas)

    def identities(self, model_hash: str, pack_hash: str) -> Identities:
        """Returns what every worker must report of itself."""
        return Identities(model_hash, pack_hash, self.usual, {} if self.homes is None else self.homes.workers)

    def lines(self, workers: Sequence[str]) -> list[str]:
        """Returns what an operator must know at the start."""
        if self.homes is None:
            return []
        counts = Counter(self.homes.experts)
        told = []
        for kind in sorted(counts):
            names = [name for name in workers if self.homes.of(name) == kind]
            told.append(f"{', '.join(names)}: {kind}, {counts[kind]} of {len(self.homes.experts)} experts")
        return [
            f"MIXED NUMERICS: {'; '.join(told)}",
            f"MIXED NUMERICS: answers equal those of this very mix alone, {self.numerics.id}; those of one kind, and "
            "of `--workers 0`, are others",
        ]


def mix_of(numerics: Callable[[Kind], ExpertNumerics], workers: WorkerKinds, experts: int) -> Mix:
    """Returns the numerics of new workers. Raises InvalidInput for fewer experts than ids.

    numerics: of the model's experts on a backend and family.
    """
    by_worker = {name: numerics(kind) for name, kind in workers.workers.items()}
    return _mix(by_worker, numerics(workers.usual), experts)


def attached_mix(own: ExpertNumerics, ids: Mapping[str, str], experts: int) -> Mix:
    """Returns the numerics of workers that run already.

    own: what this router would expect of all of them.
    ids: each worker's own id, by name.

    Raises ConfigError if they do not differ, or could not serve one router together.
    """
    by_worker = {}
    for name, text in ids.items():
        try:
            by_worker[name] = ExpertNumerics.parse(text)
        except ValueError as error:
            raise ConfigError("--expert", "workers whose numerics can be told", f"{name}: {error}") from error
    for name, found in by_worker.items():
        for part in ("weight_format", "wire_dtype", "revision"):
            expected, got = getattr(own, part), getattr(found, part)
            if got != expected:
                raise ConfigError(
                    "--expert", f"workers with {part} {expected}", f"{got} ({name}: {found.id})"
                )
    if len(set(ids.values())) < 2:
        raise ConfigError(
            OPTION, "workers of several expert_numerics_ids", ", ".join(sorted(set(ids.values())))
        )
    return _mix(by_worker, own, experts)


def _mix(by_worker: Mapping[str, ExpertNumerics], usual: ExpertNumerics, experts: int) -> Mix:
    kinds = {numerics.id: numerics for numerics in by_worker.values()}
    if len(kinds) < 2:
        (numerics,) = kinds.values() or (usual,)
        return Mix(numerics, numerics.id)
    workers = Counter(numerics.id for numerics in by_worker.values())
    homes = assign_homes(experts, workers)
    others = {name: numerics.id for name, numerics in by_worker.items() if numerics.id != usual.id}
    numerics_of_all = MixedNumerics(tuple(kinds[kind] for kind in sorted(kinds)), homes)
    return Mix(numerics_of_all, usual.id, NumericsHomes(homes, usual.id, others))
