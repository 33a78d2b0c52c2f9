"""The experts a worker holds, packed for its backend."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from colibri.errors import ExpertNotLoaded, InvalidInput
from colibri.kernels.api import Backend, ComputeMode, PackedExpert
from colibri.models.checkpoint import ExpertWeights
from colibri.models.config import MixtralConfig
from colibri.models.finite import check_finite

#: (layer, expert)
Key = tuple[int, int]


class ExpertSource(Protocol):
    """What the store needs of a checkpoint (colibri.models.checkpoint.Checkpoint)."""

    @property
    def config(self) -> MixtralConfig: ...

    def expert(self, layer: int, expert: int) -> ExpertWeights: ...


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Experts and bytes now held of those asked for; seconds spent reading and packing so far."""

    experts_done: int
    experts_total: int
    bytes_done: int
    read_seconds: float
    pack_seconds: float


class WeightStore:
    """Packed experts by (layer, expert). Thread-safe; a get never waits for a load."""

    def __init__(self, checkpoint: ExpertSource, backend: Backend, mode: ComputeMode) -> None:
        self._checkpoint = checkpoint
        self._backend = backend
        self._mode = mode
        self._packed: dict[Key, PackedExpert] = {}
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._packed)

    @property
    def bytes(self) -> int:
        """Bytes of packed weights held."""
        return sum(expert.data.nbytes for expert in list(self._packed.values()))

    def packed(self) -> list[PackedExpert]:
        """All that is held at this moment."""
        return list(self._packed.values())

    def get(self, layer: int, expert: int) -> PackedExpert:
        """Raises ExpertNotLoaded."""
        found = self._packed.get((layer, expert))
        if found is None:
            raise ExpertNotLoaded(f"expert {expert} of layer {layer} is not loaded here")
        return found

    def check(self, keys: Sequence[Key]) -> None:
        """Raises InvalidInput unless every key is an expert of the checkpoint."""
        config = self._checkpoint.config
        for layer, expert in keys:
            if not 0 <= layer < config.layers:
                raise InvalidInput("layer", f"0 to {config.layers - 1}", layer)
            if not 0 <= expert < config.experts:
                raise InvalidInput("expert", f"0 to {config.experts - 1}", expert)

    def load_steps(self, keys: Sequence[Key]) -> Iterator[LoadStep]:
        """Loads what is not held yet: one step at the start and one for each key; idempotent. Stopping early
        keeps what is loaded. A worker may well hold nothing, so `keys` may be empty.

        Raises InvalidInput before anything is loaded, CheckpointError when the checkpoint cannot be read or a
        weight is not finite.
        """
        self.check(keys)
        dtype = self._checkpoint.config.dtype
        read = pack = 0.0
        held = 0
        yield LoadStep(0, len(keys), held, read, pack)
        for done, key in enumerate(keys, 1):
            with self._changing:
                packed = self._packed.get(key)
                if packed is None:
                    begin = time.perf_counter()
                    weights = self._checkpoint.expert(*key)
                    matrices = (weights.gate, weights.up, weights.down)
                    for name, matrix in zip(("gate", "up", "down"), matrices, strict=True):
                        # Also brings a mapped matrix into memory, so that reading and packing can be told apart.
                        check_finite(matrix, dtype, f"layer {key[0]}, expert {key[1]}: {name}")
                    middle = time.perf_counter()
                    packed = self._backend.pack_expert(*matrices, self._mode)
                    self._packed[key] = packed
                    read += middle - begin
                    pack += time.perf_counter() - middle
            held += packed.data.nbytes
            yield LoadStep(done, len(keys), held, read, pack)

    def load(self, keys: Sequence[Key], progress: Callable[[LoadStep], None] | None = None) -> LoadStep:
        """As load_steps, to the end; returns the last step."""
        step = LoadStep(0, len(keys), 0, 0.0, 0.0)
        for step in self.load_steps(keys):
            if progress is not None:
                progress(step)
        return step

    def unload(self, keys: Sequence[Key]) -> int:
        """Drops what is held of `keys`; returns the bytes freed. Compute that runs keeps what it uses."""
        self.check(keys)
        with self._changing:
            dropped = [self._packed.pop(key, None) for key in keys]
        return sum(expert.data.nbytes for expert in dropped if expert is not None)
