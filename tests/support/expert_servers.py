"""Real workers on real sockets inside this process, and routers over them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from colibri.expert_service.assembly import WorkerServer
from colibri.expert_service.config import WorkerConfig
from colibri.expert_service.execute import run_units
from colibri.expert_service.store import WeightStore
from colibri.expert_service.stream import RunUnits
from colibri.kernels.api import Array, Backend, ComputeMode, PackedLinear
from colibri.kernels.arithmetic.floats import to_rows
from colibri.kernels.reference import ReferenceBackend
from colibri.models.checkpoint import Checkpoint
from colibri.numerics import ExpertNumerics
from colibri.placement import Directory, Membership, Placement, WorkerEndpoint, spread
from colibri.router_service.executor import ExpertExecutor, LocalExecutor
from colibri.router_service.handshake import RouterIdentity
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.remote import RemoteExecutor
from colibri.router_service.router import MoeRouter
from colibri.security.channel import PLAIN, ChannelSecurity
from colibri.security.server import ServerSecurity
from colibri.transport.link import LinkKind
from colibri.wire.limits import FrameLimits

GRACE_S = 2.0


class _Lent:
    """A backend that outlives the workers that use it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def close(self) -> None:
        return None


@dataclass
class MoeBench:
    """A checkpoint's MoE layers: workers that hold all of its experts, routers over any of them."""

    model: Path
    mode: ComputeMode
    folder: Path
    backend: Backend = field(default_factory=ReferenceBackend)
    max_rows: int = 1024

    def __post_init__(self) -> None:
        self.checkpoint = Checkpoint.open(self.model)
        config = self.checkpoint.config
        self.layers = config.layers
        self.experts = config.experts
        self.top_k = config.top_k
        self.hidden = config.hidden
        self.keys = [(layer, expert) for layer in range(self.layers) for expert in range(self.experts)]
        self.gates: list[PackedLinear] = [
            self.backend.pack_linear(self.checkpoint.gate(layer), self.mode) for layer in range(self.layers)
        ]
        self.store = WeightStore(self.checkpoint, self.backend, self.mode)
        self.store.load(self.keys)
        self.limits = FrameLimits(
            self.layers, self.experts, self.top_k, self.hidden, self.mode.value, self.max_rows
        )
        self.numerics = ExpertNumerics.of(self.backend.name, self.mode.value, config.dtype)
        self._sockets = 0

    def rows(self, rng: np.random.Generator, rows: int) -> Array:
        return to_rows(rng.standard_normal((rows, self.hidden)), self.mode)

    def run_units(self) -> RunUnits:
        """The routine of workers and of the local executor alike."""
        return lambda layer, x, batch: run_units(self.backend, self.store, layer, x, batch)

    def identity(self) -> RouterIdentity:
        return RouterIdentity("test", self.checkpoint.model_hash(), self.numerics.id)

    @contextmanager
    def worker(
        self,
        name: str,
        transport: str = "unix",
        *,
        incarnation: int = 1,
        listen: str | None = None,
        run: RunUnits | None = None,
        load: bool = True,
        max_queued: int = 64,
        allow_faults: bool = False,
        security: ServerSecurity | None = None,
    ) -> Iterator[WorkerServer]:
        """A worker that serves; it ends abruptly unless `stop` was called before."""
        self._sockets += 1
        default = "127.0.0.1:0" if transport == "tcp" else f"unix:{self.folder}/{name}-{self._sockets}"
        config = WorkerConfig(
            model=self.model,
            name=name,
            listen=listen or default,
            compute_mode=self.mode.value,
            incarnation=incarnation,
            backend=self.backend.name,
            max_rows=self.max_rows,
            max_queued=max_queued,
            allow_faults=allow_faults,
            security=security or ServerSecurity(),
        )
        server = WorkerServer(config, backend=cast(Backend, _Lent(self.backend)), run=run)
        if load:
            server.store.load(self.keys)
        server.start()
        try:
            yield server
        finally:
            server.stop(0.0)

    @contextmanager
    def workers(
        self, count: int, transport: str = "unix", run: RunUnits | None = None, allow_faults: bool = False
    ) -> Iterator[dict[str, WorkerServer]]:
        with ExitStack() as stack:
            names = [f"w{index}" for index in range(count)]
            yield {
                name: stack.enter_context(self.worker(name, transport, run=run, allow_faults=allow_faults))
                for name in names
            }

    def spread(self, count: int, epoch: int = 1, replicas: int = 1) -> Placement:
        names = [f"w{index}" for index in range(count)]
        return spread(self.layers, self.experts, names, replicas, epoch)

    def router(self, directory: Directory, executor: ExpertExecutor) -> MoeRouter:
        return MoeRouter(self.backend, self.mode, self.gates, self.top_k, directory, executor)

    def local(self) -> MoeRouter:
        """One worker, in this process: everything folded. The oracle."""
        return self.router(Directory(Membership(self.spread(1), {})), LocalExecutor(self.run_units()))

    @contextmanager
    def remote(
        self,
        directory: Directory,
        *,
        connect_s: float = 5.0,
        identity: RouterIdentity | None = None,
        link: LinkKind = LinkKind.GRPC,
        policy: FailoverPolicy | None = None,
    ) -> Iterator[tuple[MoeRouter, RemoteExecutor]]:
        executor = RemoteExecutor(
            identity or self.identity(),
            self.limits,
            directory,
            link=link,
            connect_s=connect_s,
            policy=policy,
        )
        try:
            yield self.router(directory, executor), executor
        finally:
            executor.close()


def membership_of(
    placement: Placement, *servers: WorkerServer, security: ChannelSecurity = PLAIN
) -> Membership:
    """security: of the channels to them."""
    return Membership(
        placement,
        {
            server.worker.name: WorkerEndpoint(
                server.worker.name, server.worker.incarnation, server.target, security
            )
            for server in servers
        },
    )
