"""A private CA, made once, and a tiny model to serve."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from colibri.kernels.api import ComputeMode
from colibri.kernels.reference import ReferenceBackend
from tests.support.pki import Pki
from tests.support.tiny_engine import TinyModel, make_tiny


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.make(tmp_path_factory.mktemp("pki") / "certs")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    folder = make_tiny(tmp_path_factory.mktemp("tiny") / "model")
    opened = TinyModel.open(folder, ReferenceBackend(), ComputeMode.BF16)
    yield opened
    opened.tokenizer.close()
