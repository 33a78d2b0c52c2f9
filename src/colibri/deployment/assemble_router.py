"""What `colibri router` serves: a router over workers that run already."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from colibri.address import parse_address
from colibri.cluster.experts.contents import Contents
from colibri.cluster.machine.topology import discover
from colibri.cluster.operator.cluster_status import StatusSources
from colibri.cluster.workers.attached import AttachedWorkers, AttachOptions
from colibri.deployment.compute_mode import choose_mode
from colibri.deployment.mix import Mix, attached_mix
from colibri.deployment.parts import connect_workers, gate_precision, machine_places, open_backend
from colibri.deployment.pinning import PinningOptions
from colibri.deployment.reports import Log, Progress, no_progress, to_logging
from colibri.deployment.running import routed_otherwise
from colibri.models.model import (
    expert_numerics,
    for_use,
    load_gates,
    noted_experts,
    open_model,
)
from colibri.placement import Placement
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.router import MoeRouter
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.transport.link import LinkKind


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """A router over workers that run already. It must be told what they were started with.

    model: folder of a checkpoint or pack, or the URL of a pack.
    targets: addresses of the workers, "host:port" or "unix:/path".
    compute_mode: "fp32" or "bf16". None: bf16 for bf16 checkpoints and their packs, else fp32.
    backend: who computes the gate here, "cpu" or "reference".
    threads: compute threads of this process. None: those of its CPUs.
    router_precision: what orders gate logits: "fp32", or "int16" scaled to the largest of the row.
    link: what carries rows to the workers.
    find_timeout_s: seconds to wait for each worker to answer.
    security: how the workers are reached.
    experts_on: "cuda/FAMILY" where the workers are GPUs of that family. None: they compute on `backend`.
    mixed_numerics: the workers may be of several kinds, as they say themselves.
    """

    model: Path | str
    targets: Sequence[str]
    compute_mode: str | None = None
    backend: str = "cpu"
    threads: int | None = None
    router_precision: str = "fp32"
    link: LinkKind = LinkKind.AUTO
    find_timeout_s: float = 30.0
    security: ChannelSecurity = PLAIN
    experts_on: str | None = None
    mixed_numerics: bool = False


@dataclass(frozen=True, slots=True)
class RouterParts:
    """What `colibri router` serves. Leaving the context ends what was started here, and leaves the workers running.

    undo: ends the parts.
    log: takes what is told at the end.
    """

    router: MoeRouter
    model_hash: str
    expert_numerics_id: str
    status: StatusSources
    undo: contextlib.ExitStack
    log: Log

    @property
    def workers(self) -> tuple[str, ...]:
        return self.status.membership().placement.workers

    def close(self) -> None:
        with self.undo:
            told = routed_otherwise(self.router)
            if told:
                self.log(told)

    def __enter__(self) -> RouterParts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def assemble_router(
    options: RouterOptions, log: Log = to_logging, *, progress: Progress = no_progress
) -> RouterParts:
    """Connects a router to workers that run already, and has them load their experts.

    progress: told of what the workers load.

    Raises what `assemble` raises, and then leaves nothing open.
    """
    with contextlib.ExitStack() as undo:
        return _assembled(options, log, progress, undo)


def _assembled(
    options: RouterOptions, log: Log, progress: Progress, undo: contextlib.ExitStack
) -> RouterParts:
    model = for_use(open_model(options.model))
    config = model.config
    mode = choose_mode(model, options.compute_mode, log)
    experts, _, family = (options.experts_on or options.backend).partition("/")
    numerics = expert_numerics(model, experts, mode, family or "any")
    precision = gate_precision(options.router_precision, options.backend)
    plan = machine_places(options.backend, options.threads, PinningOptions(), log, discover()).first(0)
    backend = open_backend(options.backend, plan)
    undo.callback(backend.close)
    gates = load_gates(model, backend)
    mixes = [Mix(numerics, numerics.id)]

    def place_workers(ids: Mapping[str, str]) -> Placement:
        """Returns the placement over the workers found. ids: each worker's own expert_numerics_id, by name."""
        if options.mixed_numerics:
            mixes.append(attached_mix(numerics, ids, config.experts))
        for line in mixes[-1].lines(list(ids)):
            log(line)
        return mixes[-1].spread(config.layers, config.experts, list(ids))

    contents = Contents()
    contents.believe(*noted_experts(model))
    workers = AttachedWorkers(
        [str(parse_address(target, "--expert")) for target in options.targets],
        place_workers,
        AttachOptions(find_timeout_s=options.find_timeout_s),
        security=options.security,
        contents=contents,
        identities=lambda: mixes[-1].identities(model.model_hash(), model.pack_hash),
        progress=lambda worker, done, total, nbytes: progress(f"worker {worker}", done, total),
        log=log,
    )
    undo.callback(workers.close)
    directory = workers.wait_serving()
    executor = connect_workers(
        model, mode, mixes[-1], directory, "router", options.link, FailoverPolicy(), undo, log
    )
    router = MoeRouter(backend, mode, gates, config.top_k, directory, executor, precision)
    sources = StatusSources(
        model=Path(model.origin).name,
        expert_numerics_id=mixes[-1].numerics.id,
        membership=directory.current,
        workers=workers.status,
        routing=executor.routing,
        health=executor.workers,
        loads=router.loads,
    )
    return RouterParts(router, model.model_hash(), mixes[-1].numerics.id, sources, undo.pop_all(), log)
