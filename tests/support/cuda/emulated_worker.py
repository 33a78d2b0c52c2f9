"""`colibri expert` in a process whose GPU is emulated: the very kernels and the very id of a card, on a CPU.

Started in place of `colibri.cli.main` for workers that were given a GPU."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.cluster.workers.launch import worker_command
from colibri.expert_service import assembly
from colibri.expert_service.config import WorkerConfig
from colibri.kernels.cuda import opening
from colibri.kernels.cuda.backend import CudaBackend
from colibri.kernels.factory import make_backend
from tests.support.command import main
from tests.support.cuda.emulated import EmulatedDevice

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).resolve().parents[3]
ARCHITECTURE, FAMILY = 90, "mma-sm90"


def as_emulated(argv: list[str]) -> list[str]:
    """The command line of a worker, run by this module if it is to have a GPU."""
    if not any(word.startswith("--device=cuda:") for word in argv):
        return argv
    return [__name__ if word == "colibri.cli.main" else word for word in argv]


def emulate(patch: pytest.MonkeyPatch) -> None:
    """For launchers of this process."""
    patch.setattr(
        "colibri.cluster.workers.local.worker_command",
        lambda *args, **options: as_emulated(worker_command(*args, **options)),
    )
    patch.setenv("PYTHONPATH", str(ROOT))


def _cuda(config: WorkerConfig) -> CudaBackend:
    return CudaBackend(
        EmulatedDevice(ARCHITECTURE), weight_bytes=1 << 26, packer=make_backend("cpu", threads=1)
    )


if __name__ == "__main__":
    assembly._make_cuda = _cuda
    opening.choose_device = lambda value, say: 0
    raise SystemExit(main(sys.argv[1:]))
