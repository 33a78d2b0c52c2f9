"""`pack.json`: what a pack is made of, with file, offset, length and digests of every blob.

Its own SHA-256 is the pack's hash, so equal hashes mean equal bytes (docs/packs.md).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from colibri.errors import CheckpointError, InvalidInput
from colibri.kernels.api import LAYOUT_VERSION
from colibri.models.dtypes import BY_NAME
from colibri.models.json_file import parse_object, read_bounded
from colibri.models.weight_format import WeightFormat

MANIFEST_NAME = "pack.json"
FORMAT, VERSION = "colibri-pack", 1
MAX_MANIFEST_BYTES = 64 << 20
_FIELDS = {
    *("format", "version", "layout_version", "model_hash", "source_dtype", "experts", "dense"),
    *("calibration", "texts", "weights", "blobs"),
}


@dataclass(frozen=True, slots=True)
class TextFile:
    """A small file, copied unchanged from the checkpoint. sha256: 64 hexadecimal digits."""

    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A weight file. bytes: of the whole file; head_bytes, head_sha256: of what stands before its first blob."""

    bytes: int
    head_bytes: int
    head_sha256: str


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes [offset, offset + bytes) of `file`.

    sha256: its address.
    xxh3: 128 bits, 32 hexadecimal digits; quicker than memory, so it is compared at each load.
    """

    file: str
    offset: int
    bytes: int
    sha256: str
    xxh3: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """What int4 was calibrated on: the text's SHA-256, its tokens, and the experts that none of them chose."""

    text_sha256: str
    tokens: int
    experts_never_chosen: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A pack's manifest.

    model_hash: of the checkpoint it was made from.
    source_dtype: of that checkpoint and of the gates.
    texts, weights: by file name.
    blobs: by name.
    """

    model_hash: str
    source_dtype: str
    experts: WeightFormat
    dense: WeightFormat
    calibration: Calibration | None
    texts: Mapping[str, TextFile]
    weights: Mapping[str, WeightFile]
    blobs: Mapping[str, Blob]

    def to_bytes(self) -> bytes:
        """Returns its only valid spelling."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "layout_version": LAYOUT_VERSION,
            **asdict(self),
        }
        return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


def pack_hash(raw: bytes) -> str:
    """Returns the first 128 bits of the SHA-256 of a manifest's bytes, in hexadecimal."""
    return short_hash(hashlib.sha256(raw).hexdigest())


def short_hash(sha256: str) -> str:
    """Returns the pack hash for a manifest's SHA-256."""
    return sha256[:32]


def read_manifest(folder: Path, pin: str = "") -> tuple[Manifest, str]:
    """Returns the manifest of the pack in `folder`, and its SHA-256.

    pin: the SHA-256 that it must have; empty: any.

    Raises CheckpointError naming field, what was expected and what it got; for a pack of another version also the
    command that makes it anew.
    """
    path = folder / MANIFEST_NAME
    return decode_manifest(read_bounded(path, MAX_MANIFEST_BYTES), str(path), pin)


def decode_manifest(raw: bytes, where: str, pin: str = "") -> tuple[Manifest, str]:
    """Does as `read_manifest`, from its bytes; `where` names them."""
    sha256 = hashlib.sha256(raw).hexdigest()
    if pin and sha256 != pin:
        raise CheckpointError.of(where, "sha256", f"{pin}, as MODEL#sha256= says", sha256)
    manifest = parse_manifest(parse_object(raw, where), where)
    if manifest.to_bytes() != raw:
        # Or one pack could have many hashes.
        raise CheckpointError.of(where, "spelling", "that of docs/packs.md", "another of the same content")
    return manifest, sha256


def parse_manifest(raw: Mapping[str, Any], where: str) -> Manifest:
    """Checks each field by itself. Pack checks whether they agree with one another and with the files."""
    if raw.get("format") != FORMAT:
        raise CheckpointError.of(where, "format", repr(FORMAT), repr(raw.get("format")))
    for field, own in (("version", VERSION), ("layout_version", LAYOUT_VERSION)):
        if raw.get(field) != own:
            got = f"{raw.get(field)!r}: make the pack anew with `{_rebuild(raw)}`"
            raise CheckpointError.of(where, field, str(own), got)
    _exactly(where, raw, _FIELDS)
    return Manifest(
        model_hash=_hex(where, "model_hash", raw["model_hash"], 32),
        source_dtype=_one_of(where, "source_dtype", raw["source_dtype"], tuple(BY_NAME)),
        experts=_format(where, "experts", raw["experts"]),
        dense=_format(where, "dense", raw["dense"]),
        calibration=_calibration(f"{where}: calibration", raw["calibration"]),
        texts={name: _text(w, entry) for name, w, entry in _named(where, "texts", raw["texts"])},
        weights={name: _weight(w, entry) for name, w, entry in _named(where, "weights", raw["weights"])},
        blobs={
            name: _blob(f"{where}: blobs: {name:.200}", entry)
            for name, entry in _object(where, "blobs", raw["blobs"]).items()
        },
    )


def _rebuild(raw: Mapping[str, Any]) -> str:
    """Returns the command that makes such a pack in today's layout, as far as the old manifest tells."""
    parts = ["colibri pack MODEL OUT"]
    experts, dense = raw.get("experts"), raw.get("dense")
    for flag, entry, field in (
        ("--dtype", experts, "dtype"),
        ("--group", experts, "group"),
        ("--dense-dtype", dense, "dtype"),
    ):
        value = entry.get(field) if isinstance(entry, dict) else None
        if value and str(value).isalnum():
            parts.append(f"{flag} {value}")
    return " ".join(parts)


def _format(where: str, field: str, entry: object) -> WeightFormat:
    found = _object(where, field, entry)
    _exactly(f"{where}: {field}", found, {"dtype", "group"})
    try:
        return WeightFormat(found["dtype"], found["group"])
    except (InvalidInput, TypeError) as error:
        raise CheckpointError(f"{where}: {field}: {error}") from None


def _calibration(where: str, entry: object) -> Calibration | None:
    if entry is None:
        return None
    found = _object(where, "", entry)
    _exactly(where, found, {"text_sha256", "tokens", "experts_never_chosen"})
    return Calibration(
        _hex(where, "text_sha256", found["text_sha256"], 64),
        _count(where, "tokens", found["tokens"]),
        _count(where, "experts_never_chosen", found["experts_never_chosen"]),
    )


def _text(where: str, entry: object) -> TextFile:
    found = _object(where, "", entry)
    _exactly(where, found, {"bytes", "sha256"})
    return TextFile(_count(where, "bytes", found["bytes"]), _hex(where, "sha256", found["sha256"], 64))


def _weight(where: str, entry: object) -> WeightFile:
    found = _object(where, "", entry)
    _exactly(where, found, {"bytes", "head_bytes", "head_sha256"})
    return WeightFile(
        _count(where, "bytes", found["bytes"]),
        _count(where, "head_bytes", found["head_bytes"]),
        _hex(where, "head_sha256", found["head_sha256"], 64),
    )


def _blob(where: str, entry: object) -> Blob:
    found = _object(where, "", entry)
    _exactly(where, found, {"file", "offset", "bytes", "sha256", "xxh3"})
    if not isinstance(found["file"], str):
        raise CheckpointError.of(where, "file", "a file's name", repr(found["file"]))
    return Blob(
        found["file"],
        _count(where, "offset", found["offset"]),
        _count(where, "bytes", found["bytes"]),
        _hex(where, "sha256", found["sha256"], 64),
        _hex(where, "xxh3", found["xxh3"], 32),
    )


def _named(where: str, field: str, entry: object) -> list[tuple[str, str, object]]:
    """Yields (file name, where its entry stands, entry) for each entry."""
    found = _object(where, field, entry)
    for name in found:
        if (
            not name
            or name.startswith(".")
            or len(name) > 255
            or any(c in "/\\:" or ord(c) < 32 for c in name)
        ):
            raise CheckpointError.of(f"{where}: {field}", "", "plain file names", repr(name))
    return [(name, f"{where}: {field}: {name}", value) for name, value in found.items()]


def _object(where: str, field: str, entry: object) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise CheckpointError.of(where, field, "an object", repr(entry))
    return entry


def _exactly(where: str, found: Mapping[str, Any], fields: set[str]) -> None:
    if set(found) != fields:
        missing, surplus = sorted(fields - set(found)), sorted(set(found) - fields)
        got = f"without {', '.join(missing)}" if missing else f"also {', '.join(surplus)}"
        raise CheckpointError.of(where, "fields", ", ".join(sorted(fields)), got)


def _one_of(where: str, field: str, value: object, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise CheckpointError.of(where, field, f"one of {', '.join(allowed)}", repr(value))
    return value


def _count(where: str, field: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 62:
        raise CheckpointError.of(where, field, "an integer from 0 on", repr(value))
    return value


def _hex(where: str, field: str, value: object, digits: int) -> str:
    if not isinstance(value, str) or len(value) != digits or set(value) - set("0123456789abcdef"):
        raise CheckpointError.of(where, field, f"{digits} hexadecimal digits", repr(value))
    return value
