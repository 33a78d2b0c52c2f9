"""A pack: a model's weights in the packed layout, so that loading one is only reading (docs/packs.md)."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colibri.errors import CheckpointError, InvalidInput
from colibri.kernels.api import F32, Backend, PackedExpert, PackedLinear
from colibri.models.config import MixtralConfig, parse_config
from colibri.models.generation_config import GenerationDefaults, load_generation_defaults
from colibri.models.json_file import read_bounded, read_object
from colibri.models.location import pinned
from colibri.models.packs.blob import read_blob
from colibri.models.packs.files import OwnFiles, PackFiles
from colibri.models.packs.manifest import MANIFEST_NAME, Manifest, read_manifest, short_hash
from colibri.models.packs.plan import (
    DENSE_FILE,
    ExpertBlob,
    MatrixBlob,
    PlannedBlob,
    PlannedFile,
    VectorBlob,
    count_blobs,
    expert_name,
    part_name,
    plan_files,
)
from colibri.models.packs.scales import ScaleLook
from colibri.models.safetensors_file import SafetensorsFile
from colibri.models.shards import listed
from colibri.models.text_names import CONFIG_NAME, MAX_TEXT_BYTES


def is_pack(folder: Path) -> bool:
    """Whether `folder` claims to be a pack."""
    return (folder / MANIFEST_NAME).exists()


class Pack:
    """An open pack, compared with its manifest. Weights are compared with their checksums when they are read.

    Layers and experts out of range raise InvalidInput.

    config, generation: of the checkpoint that it was made from.
    sha256: of its manifest; pack_hash is its first 32 digits.
    name: for people.
    nbytes: of all weights.
    dense_nbytes: of all but the experts.
    expert_nbytes: of one expert.
    """

    def __init__(
        self,
        folder: Path,
        config: MixtralConfig,
        generation: GenerationDefaults,
        manifest: Manifest,
        sha256: str,
        pin: str,
        blobs: Mapping[str, PlannedBlob],
        files: PackFiles,
    ) -> None:
        self.folder = folder
        self.origin = pinned(files.origin, pin)
        self.name = Path(files.origin).name
        self.config = config
        self.generation = generation
        self.manifest = manifest
        self.sha256 = sha256
        self.pack_hash = short_hash(sha256)
        self.nbytes = sum(blob.used for blob in blobs.values())
        self.expert_nbytes = blobs[expert_name(0, 0)].used
        self.dense_nbytes = sum(blob.used for blob in blobs.values() if blob.file == DENSE_FILE)
        self._blobs = blobs
        self._files = files

    @classmethod
    def open(cls, path: str | Path, pin: str = "") -> Pack:
        """Opens the folder `path`; reads only JSON and headers.

        pin: the SHA-256 that its manifest must have; empty: any.

        Raises CheckpointError for a missing or damaged file, and if manifest, headers and configuration contradict
        one another.
        """
        folder = Path(path)
        return cls.open_described(folder, OwnFiles(folder), pin)

    @classmethod
    def open_described(cls, folder: Path, files: PackFiles, pin: str = "") -> Pack:
        """Opens a folder whose weights are where `files` says. Weights that lie elsewhere are checked when they are
        read.
        """
        manifest, digest = read_manifest(folder, pin)
        config = _checked_config(folder, manifest)
        where = str(folder / MANIFEST_NAME)
        count = count_blobs(config)
        if len(manifest.blobs) != count:
            raise CheckpointError.of(where, "blobs", f"{count}, by {CONFIG_NAME}", len(manifest.blobs))
        if len(manifest.weights) != config.layers + 1:
            expected = f"{config.layers + 1} files, by {CONFIG_NAME}"
            raise CheckpointError.of(where, "weights", expected, listed(sorted(manifest.weights)))
        blobs: dict[str, PlannedBlob] = {}
        for file in plan_files(config, manifest.experts, manifest.dense):
            _check_entries(folder, file, manifest)
            if isinstance(files, OwnFiles):
                _check_file(folder, file)
            blobs.update((blob.name, blob) for blob in file.blobs)
        return cls(
            folder, config, load_generation_defaults(folder, config), manifest, digest, pin, blobs, files
        )

    def model_hash(self) -> str:
        """The model hash of the checkpoint that it was made from."""
        return self.manifest.model_hash

    @property
    def weights_hash(self) -> str:
        """Together with the engine's numerics id, this decides the answers.

        Plain formats follow from the checkpoint; scales also depend on how they were chosen.
        """
        plain = not (self.manifest.experts.quantised or self.manifest.dense.quantised)
        return self.manifest.model_hash if plain else self.pack_hash

    def expert(self, layer: int, expert: int, backend: Backend) -> PackedExpert:
        """Reads an expert into memory of the backend's kind.

        Raises CheckpointError for a wrong checksum, and for a scale that is not finite.
        """
        self._check_layer(layer)
        if not 0 <= expert < self.config.experts:
            raise InvalidInput("expert", f"0 to {self.config.experts - 1}", expert)
        blob = self._blobs[expert_name(layer, expert)]
        content = blob.content
        if not isinstance(content, ExpertBlob):
            raise InvalidInput(blob.name, "an expert", type(content).__name__)
        kind = content.format
        whole = backend.allocate(blob.nbytes)
        packed = PackedExpert(kind.dtype, content.hidden, content.ffn, whole[: blob.used], kind.group)
        self._fill(whole, blob, packed)
        return packed

    def expert_digest(self, layer: int, expert: int) -> bytes:
        """Returns the digest that `expert` compares an expert's bytes with: 16 bytes, the same on every host."""
        return bytes.fromhex(self.manifest.blobs[expert_name(layer, expert)].xxh3)

    def content_digest(self, experts: Mapping[tuple[int, int], bytes]) -> str:
        """Returns the digest of its manifest, which covers everything."""
        return self.sha256

    def noted_experts(self) -> dict[tuple[int, int], bytes]:
        """Returns (layer, expert) -> expert_digest for all experts."""
        config = self.config
        return {
            (layer, expert): self.expert_digest(layer, expert)
            for layer in range(config.layers)
            for expert in range(config.experts)
        }

    def matrix(self, name: str, backend: Backend) -> PackedLinear:
        """Reads a matrix of the dense part, or a gate. name: as in `plan`."""
        blob = self._blobs[name]
        content = blob.content
        if not isinstance(content, MatrixBlob):
            raise InvalidInput(name, "a matrix", type(content).__name__)
        kind = content.format
        whole = backend.allocate(blob.nbytes)
        packed = PackedLinear(kind.dtype, content.n, content.k, whole[: blob.used], kind.group)
        self._fill(whole, blob, packed)
        return packed

    def vector(self, name: str, backend: Backend) -> F32:
        """Reads the weight of a norm, fp32 [hidden]."""
        blob = self._blobs[name]
        if not isinstance(blob.content, VectorBlob):
            raise InvalidInput(name, "a vector", type(blob.content).__name__)
        whole = backend.allocate(blob.nbytes)
        self._fill(whole, blob, None)
        return whole[: blob.used].view(np.float32)

    def check_texts(self) -> None:
        """Checks that its small files are those of the manifest. Raises CheckpointError."""
        _check_texts(self.folder, self.manifest)

    def check_blob(self, name: str, backend: Backend) -> None:
        """Reads a blob and forgets it. Raises CheckpointError as `expert` does."""
        content = self._blobs[name].content
        if isinstance(content, VectorBlob):
            self.vector(name, backend)
        elif isinstance(content, MatrixBlob):
            self.matrix(name, backend)
        else:
            layer, expert = name.split(".")[1::2]
            self.expert(int(layer), int(expert), backend)

    @property
    def fetched(self) -> int:
        """Bytes fetched from elsewhere so far."""
        return self._files.fetched

    def ahead(self, experts: Sequence[tuple[int, int]]) -> contextlib.AbstractContextManager[None]:
        """Inside this context, these (layer, expert) will be needed, in this order; they may be fetched ahead."""
        names = [expert_name(layer, expert) for layer, expert in experts]
        return self._files.ahead([(name, self.manifest.blobs[name]) for name in names])

    def gate(self, layer: int, backend: Backend) -> PackedLinear:
        """Reads the gate's weight [experts, hidden], as the checkpoint had it."""
        self._check_layer(layer)
        return self.matrix(part_name(layer, "gate"), backend)

    def _fill(
        self, whole: NDArray[np.uint8], blob: PlannedBlob, packed: PackedLinear | PackedExpert | None
    ) -> None:
        """Reads a blob. packed: what `whole` is to hold, if that may have scales."""
        try:
            look = self._read(whole, blob, packed)
        except CheckpointError:
            if not self._files.renew(self.manifest.blobs[blob.name]):
                raise
            look = self._read(whole, blob, packed)
        if look is not None:
            look.check(f"{self.folder}: {blob.name}")

    def _read(
        self, whole: NDArray[np.uint8], blob: PlannedBlob, packed: PackedLinear | PackedExpert | None
    ) -> ScaleLook | None:
        look = None if packed is None else ScaleLook(packed)
        entry = self.manifest.blobs[blob.name]
        path, offset = self._files.locate(blob.name, entry)
        read_blob(path, blob.name, offset, entry.xxh3, whole, None if look is None else look.upto)
        return look

    def _check_layer(self, layer: int) -> None:
        if not 0 <= layer < self.config.layers:
            raise InvalidInput("layer", f"0 to {self.config.layers - 1}", layer)


def _checked_config(folder: Path, manifest: Manifest) -> MixtralConfig:
    where = str(folder / MANIFEST_NAME)
    if CONFIG_NAME not in manifest.texts:
        raise CheckpointError.of(where, "texts", f"{CONFIG_NAME} among them", listed(sorted(manifest.texts)))
    _check_texts(folder, manifest)
    config = parse_config(read_object(folder / CONFIG_NAME), stored_dtype=manifest.source_dtype)
    if config.dtype != manifest.source_dtype:
        expected = f"{config.dtype}, by {CONFIG_NAME}"
        raise CheckpointError.of(where, "source_dtype", expected, manifest.source_dtype)
    return config


def _check_texts(folder: Path, manifest: Manifest) -> None:
    for name, entry in manifest.texts.items():
        raw = read_bounded(folder / name, MAX_TEXT_BYTES)
        if len(raw) != entry.bytes:
            raise CheckpointError.of(folder / name, "bytes", f"{entry.bytes} ({MANIFEST_NAME})", len(raw))
        digest = hashlib.sha256(raw).hexdigest()
        if digest != entry.sha256:
            raise CheckpointError.of(folder / name, "sha256", f"{entry.sha256} ({MANIFEST_NAME})", digest)


def _check_entries(folder: Path, file: PlannedFile, manifest: Manifest) -> None:
    """Compares what the manifest says of a file with the plan."""
    where = str(folder / MANIFEST_NAME)
    entry = manifest.weights.get(file.name)
    if entry is None:
        raise CheckpointError.of(
            where, "weights", f"{file.name} among them", listed(sorted(manifest.weights))
        )
    at = f"{where}: weights: {file.name}"
    for field, expected, got in (
        ("bytes", file.nbytes, entry.bytes),
        ("head_bytes", len(file.head), entry.head_bytes),
        ("head_sha256", hashlib.sha256(file.head).hexdigest(), entry.head_sha256),
    ):
        if expected != got:
            raise CheckpointError.of(at, field, f"{expected}, by {CONFIG_NAME} and the formats", got)
    for blob in file.blobs:
        found = manifest.blobs.get(blob.name)
        at = f"{where}: blobs: {blob.name}"
        if found is None:
            raise CheckpointError.of(where, "blobs", f"{blob.name} among them", "none of that name")
        for field, wanted, came in (
            ("file", blob.file, found.file),
            ("offset", blob.offset, found.offset),
            ("bytes", blob.nbytes, found.bytes),
        ):
            if wanted != came:
                raise CheckpointError.of(at, field, f"{wanted}, by {CONFIG_NAME} and the formats", came)


def _check_file(folder: Path, file: PlannedFile) -> None:
    """Compares a file's size and header with the plan."""
    stored = SafetensorsFile(folder / file.name)
    if stored.nbytes != file.nbytes:
        raise CheckpointError.of(stored.path, "bytes", f"{file.nbytes} ({MANIFEST_NAME})", stored.nbytes)
    if stored.bytes_at(0, len(file.head)) != file.head:
        expected = f"the header that its {len(file.blobs)} blobs make"
        raise CheckpointError.of(stored.path, "header", expected, "another one")
