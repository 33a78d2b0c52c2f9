"""The line int4-quality: mean KL of an int4 pack against that of llama.cpp's Q4_0 on the same expert tensors.

Q4_0, by its published definition (ggml): blocks of 32 weights, one fp16 scale `d = w_max / -8`, w_max being the weight
of largest magnitude with its sign, numbers `floor(w / d + 8.5)` cut to 0..15, value `(number - 8) d`. Here its weights
meet exact fp32 activations, which flatters it: its own kernels quantise those, as ours do.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.table import Outcome
from colibri.coordinator.quality import Score, predictions, score
from colibri.kernels.api import ComputeMode, PackedExpert
from colibri.kernels.factory import make_backend
from colibri.models.checkpoint import Checkpoint
from colibri.models.demo_model import build_demo_model
from colibri.models.dtypes import fp32_from_stored
from colibri.models.home import colibri_home
from colibri.models.packs.pack import Pack
from colibri.models.passages import QUALITY_TEXTS, read_passages, tokenize
from colibri.models.tokenizer import Tokenizer
from tests.support.command import main as colibri

_BLOCK = 32


def q4_0(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The values that Q4_0 keeps of a matrix [n, k], k a multiple of 32."""
    blocks = weight.reshape(len(weight), -1, _BLOCK)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[..., None], axis=2)
    d = largest / np.float32(-8)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    numbers = np.clip(np.floor(blocks * inverse + np.float32(8.5)), 0, 15) - 8
    return np.asarray(numbers * d.astype(np.float16).astype(np.float32), dtype=np.float32).reshape(
        weight.shape
    )


def measure() -> Outcome:
    model = build_demo_model(colibri_home(os.environ))
    checkpoint, backend = Checkpoint.open(model), make_backend("cpu")
    passages = tokenize(read_passages(QUALITY_TEXTS)[0], Tokenizer.load(model, checkpoint.config))

    def peer(layer: int, expert: int) -> PackedExpert:
        weights = checkpoint.expert(layer, expert)
        gate, up, down = (
            q4_0(fp32_from_stored(part, checkpoint.config.dtype))
            for part in (weights.gate, weights.up, weights.down)
        )
        return backend.pack_expert(gate, up, down, ComputeMode.FP32)

    base = predictions(checkpoint, backend, ComputeMode.BF16, passages)
    theirs = score(predictions(checkpoint, backend, ComputeMode.FP32, passages, experts=peer), passages, base)
    found: dict[str, Score] = {}
    with tempfile.TemporaryDirectory() as folder:
        for group in ("32", "64"):
            out = Path(folder) / group
            arguments = ["--dtype", "int4", "--group", group, "--dense-dtype", "bf16", "--json"]
            if colibri(["pack", str(model), str(out), *arguments]):
                raise RuntimeError(f"colibri pack --group {group} failed")
            logits = predictions(Pack.open(out), backend, ComputeMode.BF16, passages)
            found[group] = score(logits, passages, base)
    backend.close()
    ours = found["64"]
    if ours.kl is None or theirs.kl is None or found["32"].kl is None:
        raise RuntimeError("scores against a base have a KL")
    return Outcome(
        f"{ours.kl / theirs.kl:.2f}x: KL {ours.kl:.3f} with groups of 64, {found['32'].kl:.3f} with 32",
        ours.kl <= theirs.kl,
        f"Q4_0's rule on the same tensors, exact activations: KL {theirs.kl:.3f}",
    )
