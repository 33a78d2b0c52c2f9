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

#: (layer, expert)
Key = tuple[int, int]
#: Of an expert's content.
Digest = bytes


@dataclass(frozen=True, slots=True)
class LoadStep:
    """Experts and bytes now held of those asked for; seconds spent reading and packing so far; bytes that this process
    has fetched from elsewhere in its life; `digest`: of the content of the expert that came last, 16 bytes."""

    experts_done: int
    experts_total: int
    bytes_done: int
    read_seconds: float
    pack_seconds: float
    bytes_fetched: int = 0
    digest: Digest = b""


class WeightStore:
    """Packed experts by (layer, expert). Thread-safe: a get never waits for a load, nor one load for another.

    model: a checkpoint, whose experts are packed here, or a pack, whose experts are only read. budget: bytes that
    packed experts may take (None: any); what would not fit is refused before it is read.
    """

    def __init__(self, model: Model, backend: Backend, mode: ComputeMode, budget: int | None = None) -> None:
        self._model = model if isinstance(model, Pack) else checked(model)
        self._backend = backend
        self._mode = mode
        self._budget = budget
        #: Bytes of one packed expert: all are of one shape.
        self.expert_bytes = expert_bytes(model, mode)
        self._packed: dict[Key, PackedExpert] = {}
        self._digests: dict[Key, Digest] = {}
        #: Experts that loads under way have been granted memory for, and how many loads each.
        self._coming: Counter[Key] = Counter()
        self._changing = threading.Lock()

    def __len__(self) -> int:
        return len(self._packed)

    @property
    def bytes(self) -> int:
        """Bytes of packed weights held."""
        return sum(expert.data.nbytes for expert in list(self._packed.values()))

    @property
    def bytes_fetched(self) -> int:
        """Brought from elsewhere in this process's life."""
        return self._model.fetched

    def held(self) -> list[Key]:
        """Of all that is held at this moment, ascending."""
        return sorted(self._packed)

    def digests(self) -> list[tuple[Key, Digest]]:
        """Of the content of all that is held at this moment, as it was read; ascending."""
        with self._changing:
            return sorted(self._digests.items())

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
        """Raises InvalidInput unless every key is an expert of the model, and they are no more than it has."""
        config = self._model.config
        most = config.layers * config.experts
        if len(keys) > most:
            raise InvalidInput("experts", f"at most {most}, as many as the model has", len(keys))
        for layer, expert in keys:
            if not 0 <= layer < config.layers:
                raise InvalidInput("layer", f"0 to {config.layers - 1}", layer)
            if not 0 <= expert < config.experts:
                raise InvalidInput("expert", f"0 to {config.experts - 1}", expert)

    def load_steps(self, keys: Sequence[Key], packer: Backend | None = None) -> Iterator[LoadStep]:
        """Loads what is not held yet: one step at the start and one for each key; idempotent. Stopping early
        keeps what is loaded. A worker may well hold nothing, so `keys` may be empty. packer: packs in place of
        the backend that computes, which packing would keep busy.

        Raises InvalidInput and OverBudget before anything is loaded, CheckpointError when the model cannot be read, a
        weight is not finite or not what it was at the first load, or a pack's checksum is wrong.
        """
        self.check(keys)
        read = pack = 0.0
        held = 0
        fresh: list[Key] = []
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
            for key in keys:
                self._digests.pop(key, None)
        return sum(expert.data.nbytes for expert in dropped if expert is not None)

    def _note(self, fresh: Sequence[Key]) -> None:
        """Before anybody may compute with what was loaded."""
        if isinstance(self._model, Pack):
            return
        try:
            self._model.save()
        except CheckpointError:
            self.unload(fresh)
            raise

    def _coming_up(self, keys: Sequence[Key]) -> Iterator[Key]:
        """The keys; while they are gone through, those of a pack that lies elsewhere come ahead of their turn."""
        missing = [key for key in keys if key not in self._packed]
        with self._model.ahead(missing) if isinstance(self._model, Pack) else contextlib.nullcontext():
            yield from keys

    def _reserve(self, keys: Sequence[Key]) -> None:
        with self._changing:
            need = len({*self._packed, *self._coming, *keys}) * self.expert_bytes
            if self._budget is not None and need > self._budget:
                new = len(set(keys).difference(self._packed))
                raise OverBudget(
                    f"memory for experts: expected at most {self._budget} bytes, got a load of {new} experts that"
                    f" makes {need} ({self.expert_bytes} each)"
                )
            self._coming.update(keys)
