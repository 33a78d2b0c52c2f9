"""Open a pack that lies elsewhere: fetch its manifest and texts at once, and each blob when it is needed.

Kept under `weights` of Colibri's home: `packs/HASH`, the pack's folder without its weights, and `blobs`
(blob_cache). So a host fetches only its own experts, once for all its processes and restarts.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from colibri.errors import CheckpointError
from colibri.models.packs.blob_cache import BlobCache
from colibri.models.packs.files import FetchedFiles
from colibri.models.packs.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, decode_manifest, short_hash
from colibri.models.packs.pack import Pack
from colibri.models.packs.remote_folder import RemoteFolder
from colibri.models.text_names import MAX_TEXT_BYTES


def open_fetched(url: str, home: Path, pin: str = "") -> Pack:
    """Opens the pack at a URL.

    pin: the SHA-256 that its pack.json must have; empty: any.

    Raises ConfigError and WeightsUnavailable as RemoteFolder does, CheckpointError as Pack.open does.
    """
    remote = RemoteFolder(url)
    cache = home / "weights"
    folder = _bring_description(remote, cache / "packs", pin)
    return Pack.open_described(folder, FetchedFiles(remote, BlobCache(cache / "blobs")), pin)


def _bring_description(remote: RemoteFolder, packs: Path, pin: str) -> Path:
    raw = _read_whole(remote, MANIFEST_NAME, MAX_MANIFEST_BYTES)
    manifest, digest = decode_manifest(raw, f"{remote.name}/{MANIFEST_NAME}", pin)
    folder = packs / short_hash(digest)
    folder.mkdir(parents=True, exist_ok=True)
    if packs.is_symlink() or folder.is_symlink():
        raise CheckpointError.of(folder, "", "a folder of the cache", "a symbolic link")
    for name, entry in manifest.texts.items():
        if not _is_whole(folder / name, entry.bytes, entry.sha256):
            text = _read_whole(remote, name, MAX_TEXT_BYTES)
            got = hashlib.sha256(text).hexdigest()
            if got != entry.sha256:
                raise CheckpointError.of(f"{remote.name}/{name}", "sha256", entry.sha256, got)
            _replace(folder / name, text)
    _replace(folder / MANIFEST_NAME, raw)
    return folder


def _read_whole(remote: RemoteFolder, name: str, most: int) -> bytes:
    size = remote.size(name)
    if size > most:
        raise CheckpointError.of(f"{remote.name}/{name}", "", f"at most {most} bytes", size)
    return remote.read(name, 0, size)


def _is_whole(path: Path, nbytes: int, sha256: str) -> bool:
    try:
        raw = path.read_bytes() if path.stat().st_size == nbytes else b""
    except FileNotFoundError:
        return False
    return hashlib.sha256(raw).hexdigest() == sha256


def _replace(path: Path, content: bytes) -> None:
    """Writes the file at once: another process may be reading or writing it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
