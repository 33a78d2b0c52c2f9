"""Write safetensors files and Hugging Face folders tensor by tensor, so that memory holds one tensor and not
one shard.

The `safetensors` library serialises dictionaries that are wholly in memory; a 90 GB sparse folder or a model
made on the fly needs neither. Format: https://github.com/huggingface/safetensors (8-byte little-endian header
length, JSON, data).
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colibri.models.dtypes import BY_NAME

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"

Producer = Callable[["TensorSpec"], npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be written: name, storage dtype ('bf16', 'fp16', 'fp32') and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the stored tensor."""
        return prod(self.shape) * BY_NAME[self.dtype].itemsize


def header_bytes(specs: Sequence[TensorSpec]) -> bytes:
    """Length prefix and JSON header of a file that holds `specs` in that order; padded to 8 bytes with
    spaces.
    """
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in specs:
        end = offset + spec.nbytes
        table[spec.name] = {
            "dtype": BY_NAME[spec.dtype].safetensors,
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(table, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def write_file(path: Path, specs: Sequence[TensorSpec], produce: Producer | None) -> None:
    """Writes one file and flushes it to disk. Without `produce` the data is a hole: right size, no blocks, reads as
    zeros.

    Raises ValueError if `produce` returns another shape or dtype than its spec says.
    """
    with open(path, "wb") as file:
        file.write(header_bytes(specs))
        if produce is None:
            file.truncate(file.tell() + sum(spec.nbytes for spec in specs))
        else:
            for spec in specs:
                array = produce(spec)
                if array.shape != spec.shape or array.dtype != BY_NAME[spec.dtype].numpy:
                    raise ValueError(
                        f"{spec.name}: expected {spec.dtype} {spec.shape}, got {array.dtype} {array.shape}"
                    )
                file.write(np.ascontiguousarray(array).data)
        file.flush()
        os.fsync(file.fileno())


def split_shards(specs: Iterable[TensorSpec], shard_bytes: int) -> list[tuple[TensorSpec, ...]]:
    """Cuts `specs`, in order, into shards of at most `shard_bytes`. A larger tensor has its own."""
    shards: list[tuple[TensorSpec, ...]] = []
    current: list[TensorSpec] = []
    size = 0
    for spec in specs:
        if current and size + spec.nbytes > shard_bytes:
            shards.append(tuple(current))
            current, size = [], 0
        current.append(spec)
        size += spec.nbytes
    if current:
        shards.append(tuple(current))
    return shards


def write_weights(
    folder: Path, specs: Iterable[TensorSpec], produce: Producer | None, shard_bytes: int
) -> tuple[str, ...]:
    """Write shards and their index (one shard: `model.safetensors` alone) into `folder`; returns the files'
    names.
    """
    shards = split_shards(specs, shard_bytes)
    if len(shards) == 1:
        write_file(folder / SINGLE_NAME, shards[0], produce)
        return (SINGLE_NAME,)
    names = tuple(f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors" for i in range(len(shards)))
    weight_map: dict[str, str] = {}
    for name, shard in zip(names, shards, strict=True):
        write_file(folder / name, shard, produce)
        weight_map.update(dict.fromkeys((spec.name for spec in shard), name))
    total = sum(spec.nbytes for shard in shards for spec in shard)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(index, indent=1))
    return (*names, INDEX_NAME)
