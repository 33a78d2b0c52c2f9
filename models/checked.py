"""Read a checkpoint's weights for use: each is read whole, is finite, and is the same as at its first load."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import xxhash

from colibri.errors import CheckpointError
from colibri.models.checkpoint import Array, Checkpoint, ExpertWeights
from colibri.models.digest_file import HEADER, WHOLE
from colibri.models.finite import check_finite
from colibri.models.safetensors_writer import INDEX_NAME
from colibri.models.tensor_names import Part, expert_parts
from colibri.models.text_names import (
    CONFIG_NAME,
    GENERATION_NAME,
    TEMPLATE_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
)

_log = logging.getLogger(__name__)

#: Files that say what the weights are.
SHAPE_TEXTS = (CONFIG_NAME, INDEX_NAME)
#: Files that only a process which answers requests uses.
ANSWER_TEXTS = (GENERATION_NAME, TOKENIZER_NAME, TOKENIZER_CONFIG_NAME, TEMPLATE_NAME)


class CheckedCheckpoint(Checkpoint):
    """The same checkpoint, with every weight checked as it is read. Errors are CheckpointErrors with file and tensor.

    Making one compares the files that describe the weights. `embedding`, `norms`, `attention`, `gate`, `expert` and
    the others read and compare all that they return. Call `save` when a load is complete, before its results are
    used: it notes what was read for the first time.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(
            checkpoint.folder,
            checkpoint.config,
            checkpoint.generation,
            checkpoint.layout,
            checkpoint.files,
            checkpoint.book,
        )
        self.book.check_texts(SHAPE_TEXTS)

    def save(self) -> None:
        self.book.save()

    def expert_and_digest(self, layer: int, expert: int) -> tuple[ExpertWeights, bytes]:
        """Returns an expert's matrices, and a digest of them that is the same for every layout and host."""
        self._prefix(layer)
        parts = expert_parts(self.config, self.layout, layer, expert)
        whole = xxhash.xxh3_128()
        arrays = []
        for part in parts:
            array, digest = self._looked(part)
            arrays.append(array)
            whole.update(digest.digest())
        return ExpertWeights(*arrays), whole.digest()

    def noted_experts(self) -> dict[tuple[int, int], bytes]:
        """Returns (layer, expert) -> digest at its first load, for the experts that have been loaded before."""
        found = {}
        for layer in range(self.config.layers):
            for expert in range(self.config.experts):
                digests = [
                    self._noted(part) for part in expert_parts(self.config, self.layout, layer, expert)
                ]
                if all(digests):
                    whole = b"".join(map(bytes.fromhex, digests))
                    found[layer, expert] = xxhash.xxh3_128(whole).digest()
        return found

    def content_digest(self, experts: Mapping[tuple[int, int], bytes]) -> str:
        """Returns one digest of all tensors: of the dense part and the gates as they were read here, and of `experts`.

        It is the same however the checkpoint is split into files; empty unless all experts are given.
        """
        if len(experts) < self.config.layers * self.config.experts:
            return ""
        whole = xxhash.xxh3_128()
        for (_, part), digest in sorted(self.book.read().items(), key=lambda item: item[0][1]):
            if part not in (WHOLE, HEADER) and ".experts." not in part:
                # The gate has another name in each layout.
                whole.update(f"{part.replace('.block_sparse_moe.', '.mlp.')} {digest}\n".encode())
        for expert in sorted(experts):
            whole.update(experts[expert])
        return whole.hexdigest()

    def _noted(self, part: Part) -> str:
        file = self.files[part.tensor]
        return self.book.noted(file.path.name, part.label(file.tensors[part.tensor].shape))

    def _part(self, part: Part) -> Array:
        return self._looked(part)[0]

    def _looked(self, part: Part) -> tuple[Array, xxhash.xxh3_128]:
        file = self.files[part.tensor]
        self.book.check(file.path.name, HEADER, file.head_digest)
        whole = file.tensors[part.tensor].shape
        label = part.label(whole)
        array = super()._part(part)
        digest = xxhash.xxh3_128()
        where = f"{file.path}: {part.tensor}"
        check_finite(
            np.ascontiguousarray(array),
            self.config.dtype,
            where,
            each=digest.update,
            whole=whole,
            first=part.first,
        )
        self.book.check(file.path.name, label, digest.hexdigest())
        return array, digest


def checked(checkpoint: Checkpoint) -> CheckedCheckpoint:
    """Returns the checkpoint with checks; itself if it has them already."""
    return checkpoint if isinstance(checkpoint, CheckedCheckpoint) else CheckedCheckpoint(checkpoint)


def check_answer_texts(checkpoint: Checkpoint) -> None:
    """Checks that tokenizer, chat template and defaults are as at the first load. Raises CheckpointError."""
    checkpoint.book.check_texts(ANSWER_TEXTS)


def warn_of_answer_texts(checkpoint: Checkpoint) -> None:
    """Warns of changes, in a process that does not use these files."""
    try:
        check_answer_texts(checkpoint)
    except CheckpointError as error:
        _log.warning("%s", error)
