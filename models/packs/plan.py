"""Plan which blobs a pack has, how large each is and where it lies. Pure arithmetic over configuration and formats
(docs/packs.md).

A blob is one matrix, one vector or one whole expert in the packed layout, padded with zeros to whole pages.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from colibri.kernels.api import LAYOUT_VERSION
from colibri.kernels.layout.packing import packed_expert_bytes, packed_linear_bytes
from colibri.models.config import MixtralConfig
from colibri.models.weight_format import WeightFormat

#: Every blob begins on a multiple of this and is a multiple of it long, so that it can be read past the page cache.
PAGE = 4096
DENSE_FILE = "dense.safetensors"
EMBEDDING, FINAL_NORM, HEAD = "embedding", "final_norm", "head"


@dataclass(frozen=True, slots=True)
class MatrixBlob:
    """A packed matrix [n, k]."""

    n: int
    k: int
    format: WeightFormat


@dataclass(frozen=True, slots=True)
class VectorBlob:
    """A vector, fp32 [n]."""

    n: int


@dataclass(frozen=True, slots=True)
class ExpertBlob:
    """A whole expert: gate_up, then down."""

    hidden: int
    ffn: int
    format: WeightFormat


@dataclass(frozen=True, slots=True)
class PlannedBlob:
    """A blob in its file. used: bytes of the content; offset: of its first byte in `file`."""

    name: str
    file: str
    content: MatrixBlob | VectorBlob | ExpertBlob
    used: int
    offset: int

    @property
    def nbytes(self) -> int:
        """Bytes in the file: `used` and zeros up to a whole page."""
        return _pages(self.used)


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """A file of the pack. head: everything before the first blob, a multiple of PAGE long; nbytes: of the
    whole file.
    """

    name: str
    head: bytes
    blobs: tuple[PlannedBlob, ...]
    nbytes: int


def expert_name(layer: int, expert: int) -> str:
    return f"layers.{layer}.experts.{expert}"


def part_name(layer: int, part: str) -> str:
    """Returns a part's name. part: 'attention_norm', 'qkv', 'o_proj', 'ffn_norm' or 'gate'."""
    return f"layers.{layer}.{part}"


def expert_file(layer: int) -> str:
    return f"experts-{layer:05d}.safetensors"


def count_blobs(config: MixtralConfig) -> int:
    """Counts the blobs of `plan_files` without listing them: a configuration may claim any number."""
    return config.layers * (5 + config.experts) + (2 if config.tied else 3)


def plan_files(config: MixtralConfig, experts: WeightFormat, dense: WeightFormat) -> Iterator[PlannedFile]:
    """Yields the dense file, then one file of experts for each layer."""
    yield _planned(DENSE_FILE, dense, list(_dense(config, dense)))
    content = ExpertBlob(config.hidden, config.ffn, experts)
    for layer in range(config.layers):
        names = [expert_name(layer, expert) for expert in range(config.experts)]
        yield _planned(expert_file(layer), experts, [(name, content) for name in names])


def _dense(config: MixtralConfig, dense: WeightFormat) -> Iterator[tuple[str, MatrixBlob | VectorBlob]]:
    hidden, heads, kv = config.hidden, config.heads * config.head_dim, config.kv_heads * config.head_dim
    gate = MatrixBlob(config.experts, hidden, WeightFormat(config.dtype))
    yield EMBEDDING, MatrixBlob(config.vocab, hidden, dense)
    for layer in range(config.layers):
        yield part_name(layer, "attention_norm"), VectorBlob(hidden)
        yield part_name(layer, "qkv"), MatrixBlob(heads + 2 * kv, hidden, dense)
        yield part_name(layer, "o_proj"), MatrixBlob(hidden, heads, dense)
        yield part_name(layer, "ffn_norm"), VectorBlob(hidden)
        yield part_name(layer, "gate"), gate
    yield FINAL_NORM, VectorBlob(hidden)
    if not config.tied:
        yield HEAD, MatrixBlob(config.vocab, hidden, dense)


def _planned(
    file: str, kind: WeightFormat, contents: Sequence[tuple[str, MatrixBlob | VectorBlob | ExpertBlob]]
) -> PlannedFile:
    sizes = [_used(content) for _, content in contents]
    head = _head(kind, [(name, _pages(used)) for (name, _), used in zip(contents, sizes, strict=True)])
    blobs = []
    at = len(head)
    for (name, content), used in zip(contents, sizes, strict=True):
        blobs.append(PlannedBlob(name, file, content, used, at))
        at += _pages(used)
    return PlannedFile(file, head, tuple(blobs), at)


def _head(kind: WeightFormat, tensors: Sequence[tuple[str, int]]) -> bytes:
    """Returns a safetensors header whose data begins on a page: the JSON is padded with spaces, as the format allows.

    It names the weight format, since another format may fill just as many whole pages.
    """
    about = {"format": "colibri-pack", "layout_version": str(LAYOUT_VERSION), "weights": kind.name}
    table: dict[str, object] = {"__metadata__": about}
    at = 0
    for name, nbytes in tensors:
        table[name] = {"dtype": "U8", "shape": [nbytes], "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    return struct.pack("<Q", len(text)) + text


def _used(content: MatrixBlob | VectorBlob | ExpertBlob) -> int:
    if isinstance(content, VectorBlob):
        return 4 * content.n
    dtype, group = content.format.dtype, content.format.group
    if isinstance(content, MatrixBlob):
        return packed_linear_bytes(dtype, content.n, content.k, group)
    return packed_expert_bytes(dtype, content.hidden, content.ffn, group)


def _pages(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE
