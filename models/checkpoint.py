"""A Mixtral checkpoint: a Hugging Face folder, compared completely with its configuration before any weight is read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from colibri.errors import CheckpointError, InvalidInput
from colibri.models.config import MixtralConfig, parse_config
from colibri.models.digest_book import DigestBook
from colibri.models.dtypes import BY_NAME, BY_SAFETENSORS
from colibri.models.fingerprint import PlacedPart, fingerprint
from colibri.models.generation_config import GenerationDefaults, load_generation_defaults
from colibri.models.json_file import read_object
from colibri.models.safetensors_file import SafetensorsFile
from colibri.models.shards import MAX_NAMED, listed, no_folder, open_weights
from colibri.models.tensor_names import (
    EMBEDDING,
    FINAL_NORM,
    LM_HEAD,
    ExpertLayout,
    Part,
    count_model_tensors,
    detect_layout,
    expert_parts,
    gate_name,
    layer_prefix,
    model_tensors,
)

Array = NDArray[Any]

_IGNORED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
"""A table that old transformers saved and that everyone computes anew."""


@dataclass(frozen=True, slots=True)
class AttentionWeights:
    """`q` [heads * head_dim, hidden], `k` and `v` [kv_heads * head_dim, hidden], `o` [hidden, heads *
    head_dim].
    """

    q: Array
    k: Array
    v: Array
    o: Array


@dataclass(frozen=True, slots=True)
class LayerNorms:
    """`input` (before attention) and `post` (before the experts), each [hidden]."""

    input: Array
    post: Array


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """`gate` (w1) and `up` (w3) [ffn, hidden], `down` (w2) [hidden, ffn]."""

    gate: Array
    up: Array
    down: Array


class Checkpoint:
    """An open checkpoint. Arrays are read-only views of mapped files, with dtypes as in `colibri.models`.

    To compute with weights, take them from `checked.CheckedCheckpoint`. Layers and experts out of range raise
    InvalidInput.

    config: the model's sizes and constants.
    generation: defaults for requests.
    layout: how experts are stored.
    nbytes: of all tensors of the model.
    expert_nbytes: of one expert.
    files: the file of each tensor.
    book: digests of the content at its first load.
    """

    #: Of no pack: the weights are the checkpoint's own.
    pack_hash = ""
    #: Bytes brought from elsewhere.
    fetched = 0

    def __init__(
        self,
        folder: Path,
        config: MixtralConfig,
        generation: GenerationDefaults,
        layout: ExpertLayout,
        files: Mapping[str, SafetensorsFile],
        book: DigestBook | None = None,
    ) -> None:
        self.folder = folder
        self.config = config
        self.generation = generation
        self.layout = layout
        self.nbytes = sum(spec.nbytes for spec in model_tensors(config, layout))
        self.expert_nbytes = config.expert_parameters * BY_NAME[config.dtype].itemsize
        self.files = files
        self.book = DigestBook(folder) if book is None else book
        self._hash: str | None = None

    @classmethod
    def open(cls, path: str | Path) -> Checkpoint:
        """Opens the folder `path`; reads only JSON and headers.

        Raises CheckpointError for a missing or damaged file, an unsupported model, and any tensor that is missing,
        surplus, or of another shape or dtype than the configuration says.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise no_folder(folder)
        raw = read_object(folder / "config.json")
        files = open_weights(folder)
        config = parse_config(raw, stored_dtype=_stored_dtype(files))
        layout = detect_layout(files, folder)
        _check_tensors(folder, config, layout, files)
        return cls(folder, config, load_generation_defaults(folder, config), layout, files)

    def embedding(self) -> Array:
        """Token embeddings [vocab, hidden]."""
        return self._array(EMBEDDING)

    def final_norm(self) -> Array:
        """Weight of the last norm [hidden]."""
        return self._array(FINAL_NORM)

    def lm_head(self) -> Array:
        """The head [vocab, hidden]; the embeddings if tied."""
        return self._array(EMBEDDING if self.config.tied else LM_HEAD)

    def norms(self, layer: int) -> LayerNorms:
        """Norm weights of a layer."""
        p = self._prefix(layer)
        return LayerNorms(
            input=self._array(p + "input_layernorm.weight"),
            post=self._array(p + "post_attention_layernorm.weight"),
        )

    def attention(self, layer: int) -> AttentionWeights:
        """Projections of a layer's attention."""
        q, k, v, o = (self._array(f"{self._prefix(layer)}self_attn.{name}_proj.weight") for name in "qkvo")
        return AttentionWeights(q=q, k=k, v=v, o=o)

    def gate(self, layer: int) -> Array:
        """The gate's weight [experts, hidden]."""
        self._prefix(layer)
        return self._array(gate_name(self.layout, layer))

    def expert(self, layer: int, expert: int) -> ExpertWeights:
        """One expert's three matrices, the same for every stored layout."""
        self._prefix(layer)
        if not 0 <= expert < self.config.experts:
            raise InvalidInput("expert", f"0 to {self.config.experts - 1}", expert)
        gate, up, down = map(self._part, expert_parts(self.config, self.layout, layer, expert))
        return ExpertWeights(gate=gate, up=up, down=down)

    @property
    def weights_hash(self) -> str:
        """Together with the engine's numerics id, this decides the answers."""
        return self.model_hash()

    @property
    def name(self) -> str:
        """Its name, for people."""
        return self.folder.resolve().name

    @property
    def origin(self) -> str:
        """The location by which another process of this host can open it."""
        return str(self.folder.resolve())

    def model_hash(self) -> str:
        """128-bit id of configuration and weights, in hexadecimal; see `fingerprint` for what it covers."""
        if self._hash is None:
            self._hash = fingerprint(self.config, self._placed_parts())
        return self._hash

    def _prefix(self, layer: int) -> str:
        if not 0 <= layer < self.config.layers:
            raise InvalidInput("layer", f"0 to {self.config.layers - 1}", layer)
        return layer_prefix(layer)

    def _array(self, name: str) -> Array:
        return self._part(Part(name, self.files[name].tensors[name].shape))

    def _part(self, part: Part) -> Array:
        whole = self.files[part.tensor].array(part.tensor)
        return np.asarray(whole.reshape(-1)[part.first : part.first + part.size].reshape(part.shape))

    def _placed_parts(self) -> Iterator[PlacedPart]:
        """Every matrix under its most common name, wherever this checkpoint keeps it."""
        for spec in model_tensors(self.config, ExpertLayout.PER_EXPERT):
            pieces = spec.name.split(".")
            part = Part(spec.name, spec.shape)
            if "block_sparse_moe" in pieces:
                layer = int(pieces[2])
                if pieces[4] == "gate":
                    part = Part(gate_name(self.layout, layer), spec.shape)
                else:
                    gate, up, down = expert_parts(self.config, self.layout, layer, int(pieces[5]))
                    part = {"w1": gate, "w2": down, "w3": up}[pieces[6]]
            file = self.files[part.tensor]
            itemsize = BY_NAME[self.config.dtype].itemsize
            begin = file.tensors[part.tensor].begin + part.first * itemsize
            yield PlacedPart(spec.name, file.path, begin, begin + part.size * itemsize)


def _stored_dtype(files: Mapping[str, SafetensorsFile]) -> str | None:
    file = files.get(EMBEDDING)
    dtype = BY_SAFETENSORS.get(file.tensors[EMBEDDING].dtype) if file else None
    return dtype.name if dtype else None


def _check_tensors(
    folder: Path, config: MixtralConfig, layout: ExpertLayout, files: Mapping[str, SafetensorsFile]
) -> None:
    count = f"{count_model_tensors(config, layout)}, by config.json"
    # A few missing ones are enough: a configuration may claim hundreds of millions of tensors.
    absent = (spec.name for spec in model_tensors(config, layout) if spec.name not in files)
    missing = list(islice(absent, MAX_NAMED))
    if missing:
        others = "" if next(absent, None) is None else " and others"
        got = f"{len(files)}, and none named {', '.join(missing)}{others}"
        raise CheckpointError.of(folder, "tensors", count, got)
    expected = {spec.name: spec for spec in model_tensors(config, layout)}
    surplus = [name for name in files if name not in expected and not _IGNORED.fullmatch(name)]
    if surplus == [LM_HEAD] and config.tied:
        # Some writers save the tied head a second time: right if it is the same, ambiguous if not.
        head, embedding = files[LM_HEAD].array(LM_HEAD), files[EMBEDDING].array(EMBEDDING)
        if not np.array_equal(head, embedding):
            same = f"the values of {EMBEDDING}, since tie_word_embeddings is true"
            raise CheckpointError.of(folder, LM_HEAD, same, "others")
    elif surplus:
        got = f"{len(files)}, with no place for {listed(surplus)}"
        raise CheckpointError.of(folder, "tensors", count, got)
    tag = BY_NAME[config.dtype].safetensors
    for name, spec in expected.items():
        info = files[name].tensors[name]
        if info.shape != spec.shape:
            where = f"{files[name].path}: {name}"
            raise CheckpointError.of(where, "shape", str(list(spec.shape)), list(info.shape))
        if info.dtype != tag:
            where = f"{files[name].path}: {name}"
            raise CheckpointError.of(where, "dtype", f"{tag} (config.json)", info.dtype)
