"""Read one safetensors file: the header is bounded and checked completely, the data is mapped and only read
on access.

Own reader, because the library's NumPy front end refuses bf16 and copies; format as published at
https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from colibri.errors import CheckpointError
from colibri.models.dtypes import BY_SAFETENSORS
from colibri.models.json_file import open_regular, parse_object

MAX_HEADER_BYTES = 100_000_000
_MAX_DIMENSIONS = 8
_METADATA = "__metadata__"
#: How a pointer begins that Git leaves where a large file was not fetched (git-lfs.com, docs/spec.md).
_GIT_LFS = b"version "

_BITS_PER_ELEMENT = {
    4: ("F4",),
    6: ("F6_E2M3", "F6_E3M2"),
    8: ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    16: ("U16", "I16", "F16", "BF16"),
    32: ("U32", "I32", "F32"),
    64: ("U64", "I64", "F64", "C64"),
}
_BITS = {tag: bits for bits, tags in _BITS_PER_ELEMENT.items() for tag in tags}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One header entry: dtype as safetensors spells it, shape, and the first and one-past-last byte, counted from the
    file's start.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.end - self.begin


class SafetensorsFile:
    """An open, checked file.

    tensors: all tensors of the file.
    array: returns one as a read-only NumPy view.
    head_digest: XXH3-128 of all bytes before the first tensor, in hexadecimal.

    The file must not be truncated while views are in use: the kernel answers with SIGBUS, as for any mapped file.
    Raises CheckpointError, naming file and entry, for anything that the format forbids.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with open_regular(path) as file:
            self.nbytes = os.fstat(file.fileno()).st_size
            try:
                header, data_start, self.head_digest = _read_header(path, file.read, self.nbytes)
            except OSError as error:
                raise CheckpointError.of(
                    path, "", "a readable file", f"the error: {error.strerror}"
                ) from error
        self.metadata = _metadata(path, header.pop(_METADATA, {}))
        self.data_start = data_start
        self.tensors = {name: _tensor_info(path, name, entry, data_start) for name, entry in header.items()}
        _check_layout(path, self.tensors, data_start, self.nbytes)
        self._map: mmap.mmap | None = None

    def array(self, name: str) -> npt.NDArray[np.generic]:
        """Returns a tensor in its shape, read-only: bf16 as uint16 patterns, fp16 as float16, fp32 as float32.

        It is a view of the mapped file; a copy only if the tensor is unaligned there. Other dtypes are refused.
        """
        info = self.tensors.get(name)
        if info is None:
            raise CheckpointError.of(self.path, name, "a tensor", "none of that name")
        dtype = BY_SAFETENSORS.get(info.dtype)
        if dtype is None:
            known = ", ".join(BY_SAFETENSORS)
            raise CheckpointError.of(f"{self.path}: {name}", "dtype", f"one of {known}", info.dtype)
        count = prod(info.shape)
        if count == 0:
            return np.empty(info.shape, dtype=dtype.numpy)
        flat = np.frombuffer(self._mapped(), dtype=dtype.numpy, count=count, offset=info.begin)
        if not flat.flags.aligned:
            flat = flat.copy()
            flat.flags.writeable = False
        return flat.reshape(info.shape)

    def bytes_at(self, begin: int, end: int) -> bytes:
        """Returns a copy of the file's bytes `[begin, end)`; the range must lie inside the file."""
        if not 0 <= begin <= end <= self.nbytes:
            raise ValueError(f"byte range {begin}..{end} outside of {self.path} ({self.nbytes} bytes)")
        return self._mapped()[begin:end]

    def _mapped(self) -> mmap.mmap:
        if self._map is None:
            with open_regular(self.path) as file:
                size = os.fstat(file.fileno()).st_size
                if size != self.nbytes:
                    expected = f"{self.nbytes} bytes, as when its header was read"
                    raise CheckpointError.of(self.path, "file size", expected, size)
                try:
                    self._map = mmap.mmap(file.fileno(), self.nbytes, access=mmap.ACCESS_READ)
                except OSError as error:
                    got = f"the error: {error.strerror}"
                    raise CheckpointError.of(self.path, "", "a file that can be mapped", got) from error
        return self._map


def _read_header(
    path: Path, read: Callable[[int], bytes], file_bytes: int
) -> tuple[dict[str, Any], int, str]:
    """Returns the JSON object, the offset at which the data begins, and the digest of the bytes before it."""
    prefix = read(8)
    if len(prefix) != 8:
        raise CheckpointError.of(path, "header length", "8 bytes", f"a file of {file_bytes}")
    (length,) = struct.unpack("<Q", prefix)
    if prefix == _GIT_LFS:
        got = "a pointer of Git LFS: fetch the file itself, as `git lfs pull` does"
        raise CheckpointError.of(path, "", "weights", got)
    if length > MAX_HEADER_BYTES:
        raise CheckpointError.of(path, "header length", f"at most {MAX_HEADER_BYTES}", length)
    if 8 + length > file_bytes:
        expected = f"at most {file_bytes - 8}, since the file has {file_bytes} bytes"
        raise CheckpointError.of(path, "header length", expected, length)
    raw = read(length)
    return parse_object(raw, f"{path}: header"), 8 + length, xxhash.xxh3_128(prefix + raw).hexdigest()


def _metadata(path: Path, entry: object) -> dict[str, str]:
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise CheckpointError.of(path, _METADATA, "an object of strings", repr(entry))
    return entry


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _tensor_info(path: Path, name: str, entry: object, data_start: int) -> TensorInfo:
    where = f"{path}: {name:.200}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise CheckpointError.of(where, "", "exactly dtype, shape and data_offsets", repr(entry))
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise CheckpointError.of(where, "dtype", f"one of {', '.join(_BITS)}", repr(dtype))
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS or not all(map(_is_size, shape)):
        raise CheckpointError.of(where, "shape", f"at most {_MAX_DIMENSIONS} sizes below 2^63", repr(shape))
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise CheckpointError.of(where, "data_offsets", "two byte offsets below 2^63", repr(offsets))
    begin, end = offsets
    bits = prod(shape) * _BITS[dtype]
    if bits % 8 or end - begin != bits // 8:
        rest = f" and {bits % 8} bits" if bits % 8 else ""
        expected = f"{bits // 8} bytes{rest} for {dtype} {shape}"
        raise CheckpointError.of(where, "data_offsets", expected, f"{end - begin} bytes")
    return TensorInfo(name, dtype, tuple(shape), data_start + begin, data_start + end)


def _check_layout(path: Path, tensors: dict[str, TensorInfo], data_start: int, file_bytes: int) -> None:
    """Checks that tensors follow one another without a gap from the first data byte to the end of the file."""
    at, previous = data_start, "the header"
    for info in sorted(tensors.values(), key=lambda info: (info.begin, info.end)):
        if info.begin != at:
            fault = "an overlap" if info.begin < at else "a hole"
            raise CheckpointError.of(
                f"{path}: {info.name:.200}",
                "data_offsets",
                f"a begin at {at - data_start}, where {previous:.200} ends",
                f"{info.begin - data_start} ({fault})",
            )
        at, previous = info.end, info.name
    if at != file_bytes:
        raise CheckpointError.of(path, "file size", f"{at} bytes, as its header says", file_bytes)
