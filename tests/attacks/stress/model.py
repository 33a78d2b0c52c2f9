"""A tiny model that all rounds share."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from colibri.kernels.api import ComputeMode
from colibri.kernels.reference import ReferenceBackend
from tests.support.tiny_engine import TinyModel, make_tiny

_folder = tempfile.TemporaryDirectory(prefix="colibri-stress-")


@functools.cache
def tiny_model() -> TinyModel:
    folder = make_tiny(Path(_folder.name) / "model")
    tiny = TinyModel.open(folder, ReferenceBackend(), ComputeMode.BF16)
    tiny.tokenizer.close()  # its process: short texts need none
    return tiny


def scratch() -> Path:
    """For files of one round."""
    return Path(tempfile.mkdtemp(dir=_folder.name))
