"""What a worker process is started with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from colibri.address import parse_address
from colibri.errors import ConfigError
from colibri.expert_service.gpu_options import GpuOptions
from colibri.security.server import ServerSecurity


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The settings of a worker process. Raises ConfigError, naming the field, for a value out of range.

    model: folder of the checkpoint or pack, or a pack's URL; experts come from nowhere else.
    name, incarnation: who this is; the pair is never reused.
    listen: "unix:/path" or "host:port" (port 0: a free one).
    compute_mode: 'fp32' or 'bf16'.
    backend, threads, isa: as in colibri.kernels.factory.make_backend.
    device: 'cuda:N' computes there, as `gpu` says; 'cpu': on CPUs.
    cpus: CPUs to run on; empty: as inherited.
    numa_node: node for weights; -1: as inherited.
    oversubscribed: another worker has these CPUs too; they are locked together with it, and this is reported.
    crossing: what to report if CPUs and memory lie on different nodes; empty: they do not.
    max_rows: rows of one request.
    max_queued: requests that may wait.
    max_streams: routers at once.
    grace_s: time for what is in flight after SIGTERM, seconds.
    parent_pid: the process that started this one; this one ends with it.
    lease_s: the worker ends if no coordinator has called for this long, seconds; None: never.
    memory: bytes that experts may take; None: no limit.
    yielding_start: start at a low CPU priority, beside workers that serve.
    share_memory: offer shared memory to routers of this host that ask for it.
    allow_faults: serve colibri.v1.Faults, which lets whoever reaches this worker make it misbehave.
    security: what callers must show: with TLS, certificates; without, the deployment's secret if it has one.
    """

    model: Path | str
    name: str
    listen: str
    compute_mode: str
    incarnation: int = 1
    backend: str = "cpu"
    threads: int | None = None
    isa: str | None = None
    device: str = "cpu"
    gpu: GpuOptions = field(default_factory=GpuOptions)
    cpus: tuple[int, ...] = ()
    numa_node: int = -1
    oversubscribed: bool = False
    crossing: str = ""
    max_rows: int = 1024
    max_queued: int = 64
    max_streams: int = 32
    grace_s: float = 10.0
    parent_pid: int | None = None
    lease_s: float | None = None
    memory: int | None = None
    yielding_start: bool = False
    share_memory: bool = True
    allow_faults: bool = False
    security: ServerSecurity = field(default_factory=ServerSecurity)

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 64 or not self.name.isprintable():
            raise ConfigError("name", "1 to 64 printable characters", repr(self.name))
        parse_address(self.listen, "listen")
        if self.gpu.int4_on is not None and self.device == "cpu":
            raise ConfigError("--int4-on", "a GPU by --device", self.device)
        if self.security.tls_cert is not None and self.security.client_ca is None:
            raise ConfigError("--client-ca", "the CA of this worker's callers, with --tls-cert", "none")
        if self.security.tokens is not None:
            raise ConfigError("--tokens", "none for a worker: its callers show certificates", "some")
        if self.compute_mode not in ("fp32", "bf16"):
            raise ConfigError("compute_mode", "fp32 or bf16", self.compute_mode)
        for name, low, high in (
            ("incarnation", 1, (1 << 64) - 1),
            ("numa_node", -1, 1023),
            ("max_rows", 1, 1 << 16),
            ("max_queued", 1, 1 << 16),
            ("max_streams", 1, 1024),
            ("grace_s", 0, 3600),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ConfigError(name, f"{low} to {high}", value)
        if self.lease_s is not None and not 1 <= self.lease_s <= 86400:
            raise ConfigError("lease_s", "1 to 86400", self.lease_s)
        if self.memory is not None and self.memory < 1:
            raise ConfigError("memory", "bytes, at least 1", self.memory)
        if self.threads is not None and not 1 <= self.threads <= 1024:
            raise ConfigError("threads", "1 to 1024", self.threads)
        if any(cpu < 0 for cpu in self.cpus) or len(set(self.cpus)) != len(self.cpus):
            raise ConfigError("cpus", "CPU numbers that differ", self.cpus)
