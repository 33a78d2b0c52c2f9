"""The one place where parts are wired: checkpoint, backend, workers, router, engine.

    Checkpoint --dense weights--> DecoderStack --\
        |                                         Engine --> Generation
        +------gates------> MoeRouter -----------/     \\---> (Router)
        |                       |
        |              RemoteExecutor --gRPC--> workers (LocalLauncher)
        +--experts--------> or LocalExecutor (--workers 0)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from colibri.cli.deployment import Deployment
from colibri.cli.phases import Phases
from colibri.cli.progress import Loading


@dataclass(frozen=True, slots=True)
class DeploymentOptions:
    """As on the command line. None: decided from the checkpoint (compute_mode) or the machine (threads)."""

    model: Path
    workers: int
    compute_mode: str | None = None
    backend: str = "cpu"
    threads: int | None = None
    transport: str = "unix"
    kv_page: int = 16
    kv_tokens: int = 16384
    prefill_chunk: int = 128


def assemble(options: DeploymentOptions, phases: Phases, loading: Loading) -> Deployment:
    """A deployment that answers. Raises CheckpointError, ConfigError, WorkerLost and their kin, leaving
    nothing running."""
