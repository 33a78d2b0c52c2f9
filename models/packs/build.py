"""Make a pack of a checkpoint: several blobs at a time, each complete on disk before the next.

Each thread holds one expert or one matrix in memory.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import LAYOUT_VERSION, Backend
from colibri.kernels.factory import make_backend
from colibri.models.checked import checked
from colibri.models.checkpoint import Checkpoint
from colibri.models.dtypes import fp32_from_stored
from colibri.models.json_file import read_bounded
from colibri.models.packs.importances import kept_importances
from colibri.models.packs.manifest import VERSION, Calibration, Manifest, TextFile, WeightFile, pack_hash
from colibri.models.packs.partial import IMPORTANCES_NAME, PartialPack
from colibri.models.packs.plan import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    ExpertBlob,
    MatrixBlob,
    PlannedBlob,
    PlannedFile,
    plan_files,
)
from colibri.models.packs.weights import Importance, SquaredError, pack_expert, pack_matrix
from colibri.models.text_names import (
    CONFIG_NAME,
    GENERATION_NAME,
    MAX_TEXT_BYTES,
    TEMPLATE_NAME,
    TOKENIZER_CONFIG_NAME,
    TOKENIZER_NAME,
)
from colibri.models.weight_format import WeightFormat

Progress = Callable[[int, int], None]
"""(bytes done, bytes in all)"""

_TEXTS = (CONFIG_NAME, GENERATION_NAME, TOKENIZER_NAME, TOKENIZER_CONFIG_NAME, TEMPLATE_NAME)


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """A calibration.

    text_sha256: of the text.
    run: called once; its results are kept with the unfinished pack: a description for the manifest, and importances
        by (layer, expert).
    """

    text_sha256: str
    run: Callable[[], tuple[Calibration, Mapping[tuple[int, int], Importance]]]


@dataclass(frozen=True, slots=True)
class PackReport:
    """What packing did.

    nbytes: of the weight files.
    source_nbytes: of the checkpoint's weights.
    *_error: relative RMS of what rounding lost.
    worst_expert: its name and its error.
    kept: blobs that an earlier, unfinished run had made.
    seconds: of this run.
    """

    pack_hash: str
    nbytes: int
    source_nbytes: int
    experts_error: float
    dense_error: float
    worst_expert: tuple[str, float]
    blobs: int
    kept: int
    seconds: float


def build_pack(
    checkpoint: Checkpoint,
    out: Path,
    experts: WeightFormat,
    dense: WeightFormat,
    *,
    calibration: CalibrationRun | None = None,
    threads: int = 1,
    progress: Progress = lambda done, total: None,
) -> PackReport:
    """Makes the folder `out`, completely or not at all. If interrupted, leaves `out.unfinished`, which the same call
    resumes.

    The same weights, formats and importances give the same bytes on any machine and with any number of threads.
    Raises CheckpointError for a weight that is not finite, has changed or does not fit fp16, for a full disk, and
    for a name that is taken.
    """
    begun = time.monotonic()
    checkpoint = checked(checkpoint)
    files = tuple(plan_files(checkpoint.config, experts, dense))
    recipe = {
        "version": VERSION,
        "layout_version": LAYOUT_VERSION,
        "model_hash": checkpoint.model_hash(),
        "experts": experts.name,
        "dense": dense.name,
        "calibration": None if calibration is None else calibration.text_sha256,
    }
    with closing(PartialPack(out, recipe, files)) as partial:
        kept = len(partial.done)
        about, importances = None, dict[tuple[int, int], Importance]()
        if calibration is not None:
            about, importances = kept_importances(partial.folder / IMPORTANCES_NAME, calibration.run)
        _write_blobs(checkpoint, partial, files, importances, threads, progress)
        checkpoint.save()
        texts = _texts(checkpoint.folder)
        manifest = Manifest(
            model_hash=checkpoint.model_hash(),
            source_dtype=checkpoint.config.dtype,
            experts=experts,
            dense=dense,
            calibration=about,
            texts={name: TextFile(len(raw), hashlib.sha256(raw).hexdigest()) for name, raw in texts.items()},
            weights={
                file.name: WeightFile(file.nbytes, len(file.head), hashlib.sha256(file.head).hexdigest())
                for file in files
            },
            blobs={name: written.entry for name, written in partial.done.items()},
        )
        raw = manifest.to_bytes()
        report = _report(checkpoint, partial, files, kept, time.monotonic() - begun, pack_hash(raw))
        partial.finish(raw, asdict(report), texts)
    return report


def _write_blobs(
    checkpoint: Checkpoint,
    partial: PartialPack,
    files: tuple[PlannedFile, ...],
    importances: Mapping[tuple[int, int], Importance],
    threads: int,
    progress: Progress,
) -> None:
    total = sum(blob.nbytes for file in files for blob in file.blobs)
    left = [blob for file in files for blob in file.blobs if blob.name not in partial.done]
    done = total - sum(blob.nbytes for blob in left)
    own, counting, failed = threading.local(), threading.Lock(), threading.Event()
    backends: list[Backend] = []

    def open_backend() -> None:
        own.backend = make_backend("cpu", threads=1)
        backends.append(own.backend)

    def work(blob: PlannedBlob) -> None:
        nonlocal done
        if failed.is_set():
            return
        try:
            data, error = _make(checkpoint, own.backend, blob, importances)
            partial.write(blob, data, error)
            with counting:
                done += blob.nbytes
                progress(done, total)
        except BaseException:
            failed.set()
            raise

    progress(done, total)
    with ThreadPoolExecutor(threads, "colibri-pack", open_backend) as pool:
        futures = [pool.submit(work, blob) for blob in left]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
        finally:
            failed.set()  # also when this thread is interrupted: what is under way ends, nothing else begins
    for backend in backends:
        backend.close()
    for future in futures:
        future.result()


def _make(
    checkpoint: Checkpoint,
    backend: Backend,
    blob: PlannedBlob,
    importances: Mapping[tuple[int, int], Importance],
) -> tuple[NDArray[np.uint8], SquaredError]:
    content, stored, where = blob.content, checkpoint.config.dtype, f"{checkpoint.folder}: {blob.name}"
    if isinstance(content, ExpertBlob):
        layer, expert = (int(part) for part in blob.name.split(".")[1::2])
        importance = importances.get((layer, expert))
        packed, error = pack_expert(
            backend, checkpoint.expert(layer, expert), stored, content.format, where, importance
        )
        return packed.data, error
    weight = _dense_weight(checkpoint, blob.name)
    if isinstance(content, MatrixBlob):
        matrix, error = pack_matrix(backend, weight, stored, content.format, where)
        return matrix.data, error
    return fp32_from_stored(weight, stored).view(np.uint8), SquaredError()


def _dense_weight(checkpoint: Checkpoint, name: str) -> NDArray[np.generic]:
    whole = {EMBEDDING: checkpoint.embedding, FINAL_NORM: checkpoint.final_norm, HEAD: checkpoint.lm_head}
    if name in whole:
        return whole[name]()
    _, number, part = name.split(".")
    layer = int(number)
    if part == "gate":
        return checkpoint.gate(layer)
    if part == "qkv":
        attention = checkpoint.attention(layer)
        return np.concatenate([attention.q, attention.k, attention.v])
    if part == "o_proj":
        return checkpoint.attention(layer).o
    norms = checkpoint.norms(layer)
    return norms.input if part == "attention_norm" else norms.post


def _texts(folder: Path) -> dict[str, bytes]:
    return {name: read_bounded(folder / name, MAX_TEXT_BYTES) for name in _TEXTS if (folder / name).exists()}


def _report(
    checkpoint: Checkpoint,
    partial: PartialPack,
    files: tuple[PlannedFile, ...],
    kept: int,
    seconds: float,
    digest: str,
) -> PackReport:
    dense = experts = SquaredError()
    worst = ("", 0.0)
    for file in files:
        for blob in file.blobs:
            error = partial.done[blob.name].error
            if not isinstance(blob.content, ExpertBlob):
                dense += error
                continue
            experts += error
            worst = max(worst, (blob.name, error.relative_rms), key=lambda pair: pair[1])
    return PackReport(
        pack_hash=digest,
        nbytes=sum(file.nbytes for file in files),
        source_nbytes=checkpoint.nbytes,
        experts_error=experts.relative_rms,
        dense_error=dense.relative_rms,
        worst_expert=worst,
        blobs=sum(len(file.blobs) for file in files),
        kept=kept,
        seconds=seconds,
    )
