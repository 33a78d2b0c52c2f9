"""A running deployment: the parts that `assemble` wired, and how they end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from colibri.cluster.operator.cluster_status import StatusSources
from colibri.cluster.operator.operator_service import OperatorServicer
from colibri.cluster.placing.manager import PlacementManager
from colibri.cluster.workers.launcher import Launcher
from colibri.coordinator.decoder_weights import DecoderWeights
from colibri.coordinator.engine import Engine
from colibri.coordinator.validation.requests import RequestLimits
from colibri.deployment.reports import Log
from colibri.kernels.api import Backend, GatePrecision
from colibri.models.model import Model, content_digest, noted_experts
from colibri.models.tokenizer import Tokenizer
from colibri.numerics import EngineNumerics
from colibri.placement import Directory
from colibri.router_service.executor import ExpertExecutor
from colibri.router_service.remote import RemoteExecutor
from colibri.router_service.router import MoeRouter


def routed_otherwise(router: MoeRouter) -> str:
    """Says how often a narrower gate precision has chosen otherwise than fp32; empty if there is nothing to say."""
    times = router.times()
    if router.precision is GatePrecision.FP32 or not times.rows:
        return ""
    share = 100 * times.differing_rows / times.rows
    return (
        f"router precision {router.precision.value}: fp32 would have chosen otherwise for {times.differing_rows} of "
        f"{times.rows} rows ({share:.2g} %), over {router.layers} layers"
    )


@dataclass(frozen=True, slots=True)
class Deployment:
    """The parts of a running deployment. Leaving the context ends all of them.

    launcher, manager: None without workers.
    undo: ends all parts but the engine.
    log: takes what is told at the end.
    """

    model: Model
    tokenizer: Tokenizer | None
    numerics: EngineNumerics
    backend: Backend
    weights: DecoderWeights
    directory: Directory
    executor: ExpertExecutor
    router: MoeRouter
    engine: Engine
    launcher: Launcher | None
    manager: PlacementManager | None
    undo: contextlib.ExitStack
    log: Log

    @property
    def limits(self) -> RequestLimits:
        config = self.model.config
        return RequestLimits(config.vocab, self.engine.context, self.model.generation)

    @property
    def worker_names(self) -> list[str]:
        return [] if self.launcher is None else [status.name for status in self.launcher.status()]

    def content_digest(self) -> str:
        """The digest of every weight as it was read; empty until all experts were."""
        found = self.launcher
        experts = noted_experts(self.model)[0] if found is None else found.publisher.contents.known()
        return content_digest(self.model, experts)

    def operator(self, model: str, log_lines_dropped: Callable[[], int] = lambda: 0) -> OperatorServicer:
        """Returns the service Operator over this deployment.

        model: its name in `colibri status`.
        log_lines_dropped: returns how many lines of this process's log were lost.
        """
        remote = self.executor if isinstance(self.executor, RemoteExecutor) else None
        sources = StatusSources(
            model=model,
            expert_numerics_id=self.numerics.expert.id,
            membership=self.directory.current,
            engine=self.engine.stats,
            loads=self.router.loads,
            workers=None if self.launcher is None else self.launcher.status,
            view=None if self.manager is None else self.manager.view,
            routing=None if remote is None else remote.routing,
            health=None if remote is None else remote.workers,
            log_lines_dropped=log_lines_dropped,
        )
        return OperatorServicer(sources, self.manager)

    def spell(self, token: int) -> str:
        """Returns how a token reads, escaped; empty without a tokenizer."""
        return "" if self.tokenizer is None else repr(self.tokenizer.decode([token], skip_special=False))

    def close(self, grace_s: float = 0.0) -> None:
        """Gives running requests `grace_s` seconds, then ends the engine and what it stands on."""
        with self.undo:
            self.engine.close(grace_s)
            told = routed_otherwise(self.router)
            if told:
                self.log(told)

    def abandon(self) -> None:
        """Ends it from a signal handler, right before this process ends: takes no lock."""
        if self.launcher is not None:
            self.launcher.abandon()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
