"""What `colibri router` serves: a router over workers that run already."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from colibri.cli.compute_mode import choose_mode
from colibri.cli.mix import Mix, attached_mix
from colibri.cli.parts import connect_workers, gate_precision, machine_places, open_backend
from colibri.cli.pinning_options import PinningOptions
from colibri.cli.progress import Loading
from colibri.cli.terminal import say
from colibri.cluster.attached import AttachedWorkers, AttachOptions
from colibri.cluster.cluster_status import StatusSources
from colibri.cluster.contents import Contents
from colibri.cluster.topology import discover
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
from colibri.transport.address import parse_address
from colibri.transport.link import LinkKind


@dataclass(frozen=True, slots=True)
class RouterParts:
    """What `colibri router` serves."""

    router: MoeRouter
    model_hash: str
    expert_numerics_id: str
    status: StatusSources

    @property
    def workers(self) -> tuple[str, ...]:
        return self.status.membership().placement.workers


def assemble_router(
    place: Path | str,
    targets: Sequence[str],
    compute_mode: str | None,
    backend_name: str,
    threads: int | None,
    find_timeout_s: float,
    link: LinkKind,
    loading: Loading,
    undo: contextlib.ExitStack,
    log: Callable[[str], None] = say,
    *,
    security: ChannelSecurity = PLAIN,
    router_precision: str = "fp32",
    experts_on: str | None = None,
    mixed_numerics: bool = False,
) -> RouterParts:
    """A router over workers that run already, reached as `security` says; `undo` ends what was started here, but not
    them. experts_on: 'cuda/FAMILY' where GPUs of that family are the workers (None: this backend's kind);
    mixed_numerics: they may be of several kinds, as they say themselves. Raises as `assemble`."""
    model = for_use(open_model(place))
    config = model.config
    mode = choose_mode(model, compute_mode, log)
    experts, _, family = (experts_on or backend_name).partition("/")
    numerics = expert_numerics(model, experts, mode, family or "any")
    precision = gate_precision(router_precision, backend_name)
    plan = machine_places(backend_name, threads, PinningOptions(), log, discover()).first(0)
    backend = open_backend(backend_name, plan)
    undo.callback(backend.close)
    gates = load_gates(model, backend)
    mixes = [Mix(numerics, numerics.id)]

    def place_workers(ids: Mapping[str, str]) -> Placement:
        """ids: as the workers that were found say them."""
        if mixed_numerics:
            mixes.append(attached_mix(numerics, ids, config.experts))
        for line in mixes[-1].lines(list(ids)):
            log(line)
        return mixes[-1].spread(config.layers, config.experts, list(ids))

    contents = Contents()
    contents.believe(*noted_experts(model))
    workers = AttachedWorkers(
        [str(parse_address(target, "--expert")) for target in targets],
        place_workers,
        AttachOptions(find_timeout_s=find_timeout_s),
        security=security,
        contents=contents,
        identities=lambda: mixes[-1].identities(model.model_hash(), model.pack_hash),
        progress=lambda worker, done, total, nbytes: loading.update(f"worker {worker}", done, total),
        log=log,
    )
    undo.callback(workers.close)
    directory = workers.wait_serving()
    executor = connect_workers(model, mode, mixes[-1], directory, "router", link, FailoverPolicy(), undo, log)
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
    return RouterParts(router, model.model_hash(), mixes[-1].numerics.id, sources)
