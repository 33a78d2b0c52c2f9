"""Build the demo model: SmolLM2-135M-Instruct with each FFN upcycled into 8 experts, as a Mixtral folder.

The folder is made under another name and then renamed, so it is complete or absent, whoever else builds at the same
time.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt

from colibri.errors import CheckpointError, DeadlineExpired
from colibri.models.demo_source import DISTRIBUTION, VERSION, check_gguf, find_gguf
from colibri.models.demo_weights import DIGESTS, EXPERTS, CheckedWeights, demo_config, demo_specs
from colibri.models.gguf_llama import GgufLlama
from colibri.models.gguf_tokenizer import build_tokenizer, tokenizer_config
from colibri.models.safetensors_writer import TensorSpec, write_weights

NAME = "smollm2-moe-8x135m"
MANIFEST = "colibri_demo.json"

Progress = Callable[[str, int, int], None]
"""(stage, done, total). Stages in order: 'waiting' (seconds, another process builds), 'reading', 'weights'
(bytes), 'finishing'.
"""

_REVISION = 1
_SHARD_BYTES = 256 << 20
_LOCK_POLL_S = 0.2
_README = f"""Demo model of Colibri, made from SmolLM2-135M-Instruct (HuggingFaceTB, Apache-2.0) as packed in
{DISTRIBUTION} {VERSION}. Changed: dequantised to bf16; each feed-forward network became {EXPERTS} experts by
sparse upcycling, each with a small random perturbation of its own; a gate was added.
"""


def demo_model_path(home: Path) -> Path:
    """Where the demo model lies under a Colibri home."""
    return home / "models" / NAME


def is_ready(folder: Path) -> bool:
    """Whether `folder` holds a finished demo model of this recipe: its manifest, and every file with the size it
    names.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
        return bool(
            manifest["recipe"] == _recipe()
            and manifest["files"]
            and all((folder / name).stat().st_size == size for name, size in manifest["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def build_demo_model(home: Path, progress: Progress | None = None, *, lock_timeout_s: float = 600.0) -> Path:
    """Makes the demo model under `home` unless it is there. Returns its folder. Takes about 1.4 GB of disk.

    Several processes may call this at once: one builds, the others wait for it, at most `lock_timeout_s` seconds.
    Raises CheckpointError if the source is not installed, a tensor's digest is wrong, the disk is full, or a user's
    folder is in the way; DeadlineExpired if the lock stayed taken.
    """
    report = progress or _silent
    folder = demo_model_path(home)
    if is_ready(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _lock(folder.parent / f".{NAME}.lock", lock_timeout_s, report):
        if is_ready(folder):
            return folder
        if folder.exists() and not (folder / MANIFEST).is_file():
            raise CheckpointError(
                f"{folder} is in the way and was not made by Colibri; move it or set COLIBRI_HOME"
            )
        # Whoever holds the lock owns every unfinished folder: their makers were killed.
        for left in folder.parent.glob(f".{NAME}.tmp-*"):
            shutil.rmtree(left, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{NAME}.tmp-", dir=folder.parent))
        try:
            built = scratch / NAME
            built.mkdir()
            _write_folder(built, report)
            if folder.exists():
                folder.rename(scratch / "replaced")
            built.rename(folder)
            _sync_folder(folder.parent)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


def _write_folder(folder: Path, report: Progress) -> None:
    report("reading", 0, 1)
    path = find_gguf()
    check_gguf(path)
    source = GgufLlama(path)
    vocabulary = source.vocabulary()
    config = demo_config(source.shape, vocabulary)
    specs = demo_specs(config)
    total = sum(spec.nbytes for spec in specs)
    free = shutil.disk_usage(folder).free
    if free < total + (64 << 20):
        raise CheckpointError(f"{folder}: disk space: expected {total + (64 << 20)} bytes, got {free}")
    report("reading", 1, 1)

    weights, done = CheckedWeights(source), 0

    def produce(spec: TensorSpec) -> npt.NDArray[np.generic]:
        nonlocal done
        report("weights", done, total)
        array = weights(spec)
        done += spec.nbytes
        return array

    write_weights(folder, specs, produce, _SHARD_BYTES)
    report("weights", total, total)
    report("finishing", 0, 1)
    build_tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(vocabulary, source.shape.context))
    _write_json(folder / "config.json", config)
    special = {
        "bos_token_id": vocabulary.bos,
        "eos_token_id": vocabulary.eos,
        "pad_token_id": vocabulary.padding,
    }
    _write_json(folder / "generation_config.json", special)
    (folder / "README.md").write_text(_README)
    files = {file.name: file.stat().st_size for file in sorted(folder.iterdir())}
    _write_json(folder / MANIFEST, {"recipe": _recipe(), "files": files})
    for file in folder.iterdir():
        with open(file, "rb") as handle:
            os.fsync(handle.fileno())
    _sync_folder(folder)
    report("finishing", 1, 1)


def _recipe() -> str:
    """Returns a text that changes with the builder's revision, the note and any tensor."""
    return f"{_REVISION}-{hashlib.sha256(_README.encode() + DIGESTS.read_bytes()).hexdigest()}"


@contextmanager
def _lock(path: Path, timeout_s: float, report: Progress) -> Iterator[None]:
    """Hold an exclusive lock on `path`; the kernel drops it when a holder dies. The file names its holder."""
    with open(path, "a+") as file:
        started = time.monotonic()
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited = time.monotonic() - started
                file.seek(0)
                holder = f"process {file.read(32).strip() or 'unknown'}"
                if waited > timeout_s:
                    raise DeadlineExpired(
                        f"{path}: {holder} has been building the demo model for {waited:.0f} s", peer=holder
                    ) from None
                report("waiting", int(waited), int(timeout_s))
                time.sleep(_LOCK_POLL_S)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _silent(stage: str, done: int, total: int) -> None:
    return None
