"""What the processes of a deployment load of a model, without the processes: the very calls that they make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from colibri.coordinator.decoder_weights import DecoderWeights
from colibri.errors import CheckpointError
from colibri.expert_service.store import WeightStore
from colibri.kernels.api import Backend
from colibri.models.model import confirm_texts, default_mode, for_use, load_gates, open_model
from colibri.placement import spread


def coordinator(folder: Path, backend: Backend) -> None:
    """Texts, dense part and gates, as `assemble` loads them."""
    model = for_use(open_model(folder))
    confirm_texts(model)
    DecoderWeights.load(model, backend, default_mode(model))
    load_gates(model, backend)


def worker(folder: Path, backend: Backend, index: int, workers: int, replicas: int) -> None:
    """The share of one of `workers`, as the default placement gives it."""
    model = open_model(folder)
    config = model.config
    placement = spread(config.layers, config.experts, [f"w{number}" for number in range(workers)], replicas)
    WeightStore(model, backend, default_mode(model)).load(placement.experts_of(index))


def deployment(workers: int, replicas: int) -> list[Callable[[Path, Backend], None]]:
    """The loads of the processes of a deployment; workers 0: one process that loads everything."""

    def load(index: int) -> Callable[[Path, Backend], None]:
        return lambda folder, backend: worker(folder, backend, index, max(workers, 1), replicas)

    return [coordinator, *(load(index) for index in range(max(workers, 1)))]


def refusals(folder: Path, backend: Backend, loads: list[Callable[[Path, Backend], None]]) -> list[str]:
    """What each load that is refused says."""
    found = []
    for load in loads:
        try:
            load(folder, backend)
        except CheckpointError as error:
            found.append(error.message)
    return found
