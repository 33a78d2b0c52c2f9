"""The experts a worker holds, packed for its backend."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from colibri.errors import CheckpointError, ExpertNotLoaded, InvalidInput, OverBudget
from colibri.kernels.api import Backend, ComputeMode, PackedExpert
from colibri.models.checked import checked
from colibri.models.model import Model, expert_bytes
from colibri.models.packs.pack import Pack

#: (layer, expert); as numbers, also what expert.proto's ExpertId says.
ExpertId = tuple[int, int]
#: Of an expert's content.
Digest = bytes


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Progress of a load.

    experts_done, experts_total: held now, of those asked for.
    bytes_done: of packed weights held now, of those asked for.
    read_seconds, pack_seconds: spent so far.
    bytes_fetched: by this process in its life, from elsewhere.
    digest: of the content of the last expert, 16 bytes.
    """

    experts_done: int
    experts_total: int
    bytes_done: int
    read_seconds: float
    pack_seconds: float
    bytes_fetched: int = 0
    digest: Digest = b""


class WeightStore:
    """Packed experts by (layer, expert). Thread-safe: a get never waits for a load, nor does one load wait for
    another.

    model: a checkpoint, whose experts are packed here, or a pack, whose experts are only read.
    budget: bytes that packed experts may take; None: no limit. A load beyond it is refused before anything is read.
    """

    def __init__(self, model: Model, backend: Backend, mode: ComputeMode, budget: int | None = None) -> None:
        self._model = model if isinstance(model, Pack) else checked(model)
        self._backend = backend
        self._mode = mode
        self._budget = budget
        #: Bytes of one packed expert: all are of one shape.
        self.expert_bytes = expert_bytes(model, mode)
        self._packed: dict[ExpertId, PackedExpert] = {}
        self._digests: dict[ExpertId, Digest] = {}
        #: Experts that loads under way have been granted memory for, and how many loads each.
        self._coming: Counter[ExpertId] = Counter()
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._packed)

    @property
    def bytes(self) -> int:
        """Bytes of packed weights held."""
        return sum(expert.data.nbytes for expert in list(self._packed.values()))

    @property
    def bytes_fetched(self) -> int:
        """Bytes fetched by URL in this process's life."""
        return self._model.fetched

    def held(self) -> list[ExpertId]:
        """Returns the experts held now, ascending."""
        return sorted(self._packed)

    def digests(self) -> list[tuple[ExpertId, Digest]]:
        """Returns the content digests of all experts held now, as they were read; ascending."""
        with self._changing:
            return sorted(self._digests.items())

    def packed(self) -> list[PackedExpert]:
        """Returns all packed experts held now."""
        return list(self._packed.values())

    def get(self, layer: int, expert: int) -> PackedExpert:
        """Raises ExpertNotLoaded."""
        found = self._packed.get((layer, expert))
        if found is None:
            raise ExpertNotLoaded(f"expert {expert} of layer {layer} is not loaded here")
        return found

    def check(self, keys: Sequence[ExpertId]) -> None:
        """Raises InvalidInput unless every key is an expert of the model, and there are no more keys than experts."""
        config = self._model.config
        most = config.layers * config.experts
        if len(keys) > most:
            raise InvalidInput("experts", f"at most {most}, as many as the model has", len(keys))
        for layer, expert in keys:
            if not 0 <= layer < config.layers:
                raise InvalidInput("layer", f"0 to {config.layers - 1}", layer)
            if not 0 <= expert < config.experts:
                raise InvalidInput("expert", f"0 to {config.experts - 1}", expert)

    def load_steps(self, keys: Sequence[ExpertId], packer: Backend | None = None) -> Iterator[LoadStep]:
        """Loads the experts that are not held yet. Yields a step at the start and one per key. Idempotent.

        keys: (layer, expert); may be empty, since a worker may hold nothing.
        packer: packs in place of the computing backend, which packing would keep busy.

        Stopping early keeps what is loaded. Raises InvalidInput and OverBudget before anything is loaded;
        CheckpointError if the model cannot be read, a weight is not finite or has changed since the first load, or
        a pack's checksum is wrong.
        """
        self.check(keys)
        read = pack = 0.0
        held = 0
        fresh: list[ExpertId] = []
        self._reserve(keys)
        try:
            yield LoadStep(0, len(keys), held, read, pack, self.bytes_fetched)
            for done, key in enumerate(self._coming_up(keys), 1):
                packed = self._packed.get(key)
                if packed is None:
                    begin = time.perf_counter()
                    if isinstance(self._model, Pack):
                        packed = self._model.expert(*key, self._backend)
                        digest = self._model.expert_digest(*key)
                        middle = time.perf_counter()
                    else:
                        # Also brings mapped matrices into memory, so that reading and packing can be told apart.
                        weights, digest = self._model.expert_and_digest(*key)
                        middle = time.perf_counter()
                        packed = (packer or self._backend).pack_expert(
                            weights.gate, weights.up, weights.down, self._mode
                        )
                    with self._changing:
                        packed = self._packed.setdefault(key, packed)
                        self._digests.setdefault(key, digest)
                    fresh.append(key)
                    read += middle - begin
                    pack += time.perf_counter() - middle
                held += packed.data.nbytes
                if done == len(keys):
                    self._note(fresh)
                digest = self._digests.get(key, b"")
                yield LoadStep(done, len(keys), held, read, pack, self.bytes_fetched, digest)
        finally:
            with self._changing:
                self._coming.subtract(keys)
                self._coming += Counter()  # forgets the zeros

    def load(self, keys: Sequence[ExpertId], progress: Callable[[LoadStep], None] | None = None) -> LoadStep:
        """Loads as load_steps does, to the end. Returns the last step."""
        step = LoadStep(0, len(keys), 0, 0.0, 0.0)
        for step in self.load_steps(keys):
            if progress is not None:
                progress(step)
        return step

    def unload(self, keys: Sequence[ExpertId]) -> int:
        """Drops the given experts that are held. Returns the bytes freed. Running computations keep what they use."""
        self.check(keys)
        with self._changing:
            dropped = [self._packed.pop(key, None) for key in keys]
            for key in keys:
                self._digests.pop(key, None)
        return sum(expert.data.nbytes for expert in dropped if expert is not None)

    def _note(self, fresh: Sequence[ExpertId]) -> None:
        """Notes digests of loaded experts, before anything may compute with them."""
        if isinstance(self._model, Pack):
            return
        try:
            self._model.save()
        except CheckpointError:
            self.unload(fresh)
            raise

    def _coming_up(self, keys: Sequence[ExpertId]) -> Iterator[ExpertId]:
        """Yields the keys. Meanwhile experts of a pack that lies elsewhere are fetched ahead."""
        missing = [key for key in keys if key not in self._packed]
        with self._model.ahead(missing) if isinstance(self._model, Pack) else contextlib.nullcontext():
            yield from keys

    def _reserve(self, keys: Sequence[ExpertId]) -> None:
        with self._changing:
            need = len({*self._packed, *self._coming, *keys}) * self.expert_bytes
            if self._budget is not None and need > self._budget:
                new = len(set(keys).difference(self._packed))
                raise OverBudget(
                    f"memory for experts: expected at most {self._budget} bytes, got a load of {new} experts that"
                    f" makes {need} ({self.expert_bytes} each)"
                )
            self._coming.update(keys)
