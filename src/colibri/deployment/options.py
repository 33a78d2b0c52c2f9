"""The options of a deployment."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from colibri.coordinator.engine import EngineOptions
from colibri.deployment.cluster import ClusterOptions
from colibri.deployment.pinning import CPU, PinningOptions
from colibri.errors import ConfigError
from colibri.transport.link import LinkKind


@dataclass(frozen=True, slots=True)
class DeploymentOptions:
    """A model, its workers and its engine. Only compute_mode, backend, router_precision and mixed_numerics change bits.

    model: folder of a checkpoint or pack, or the URL of a pack.
    workers: expert workers; 0: all experts in this process. None: one for each GPU by `pinning.devices`, else
        usual_workers.
    replicas: workers that hold each expert, at most `workers`.
    compute_mode: "fp32" or "bf16". None: bf16 for bf16 checkpoints and their packs, else fp32.
    router_precision: what orders gate logits: "fp32", or "int16" scaled to the largest of the row.
    backend: "cpu" or "reference".
    threads: compute threads of each process. None: its share of the CPUs.
    transport: how this process reaches workers of this machine: "unix" or "tcp".
    link: what carries rows to the workers.
    engine: sizes of the KV cache and of a step.
    cluster: how workers are started, protected, replaced and balanced.
    pinning: where workers run on this machine.
    usual_workers: workers where nothing else says how many.
    mixed_numerics: let workers of several kinds (GPUs and CPUs) serve together, each expert on one kind for good.
    start_timeout_s: seconds until a worker's process must answer. None: 60, and 10 more for each worker.
    """

    model: Path | str
    workers: int | None
    replicas: int = 1
    compute_mode: str | None = None
    router_precision: str = "fp32"
    backend: str = "cpu"
    threads: int | None = None
    transport: str = "unix"
    link: LinkKind = LinkKind.AUTO
    engine: EngineOptions = field(default_factory=EngineOptions)
    cluster: ClusterOptions = field(default_factory=ClusterOptions)
    pinning: PinningOptions = field(default_factory=PinningOptions)
    usual_workers: int = 2
    mixed_numerics: bool = False
    start_timeout_s: float | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError, naming the option."""
        whole = ("--workers", self.workers, 0, 256), ("--threads", self.threads, 1, 1024)
        for option, value, low, high in (*whole, ("--replicas", self.replicas, 1, 16)):
            if value is not None and (type(value) is not int or not low <= value <= high):
                raise ConfigError(option, f"a whole number from {low} to {high}", repr(value))
        for option, word, known in (
            ("--compute-mode", self.compute_mode, (None, "fp32", "bf16")),
            ("--router-precision", self.router_precision, ("fp32", "int16")),
            ("--backend", self.backend, ("cpu", "reference", "cuda")),
            ("--transport", self.transport, ("unix", "tcp")),
        ):
            if word not in known:
                raise ConfigError(option, f"one of {', '.join(map(str, known))}", repr(word))
        if self.start_timeout_s is not None and not 0 < self.start_timeout_s <= 86400:
            raise ConfigError("--start-timeout", "seconds above 0, up to 86400", self.start_timeout_s)
        given = self.cluster.gpu.given()
        if self.pinning.devices == (CPU,) and given:
            raise ConfigError(f"--{next(iter(given))}", "a GPU by --device", CPU)
