"""The bits of every mode, on every instruction path of this machine, against the committed receipts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colibri.kernels.api import ComputeMode
from colibri.kernels.cpu.backend import supported_isas
from colibri.models.random_mixtral import random_mixtral
from colibri.numerics import NUMERICS_REVISION
from tests.support import golden

COMMITTED = json.loads(golden.FILE.read_text())


def test_revision_is_the_one_of_the_file() -> None:
    assert COMMITTED["revision"] == NUMERICS_REVISION


@pytest.fixture(scope="module", params=list(golden.MODELS))
def named_model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    name: str = request.param
    return name, random_mixtral(tmp_path_factory.mktemp("golden") / "model", golden.MODELS[name])


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("mode", list(ComputeMode))
def test_receipts(
    named_model: tuple[str, Path], mode: ComputeMode, isa: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, folder = named_model
    monkeypatch.setenv("COLIBRI_ISA", isa)
    assert golden.receipts(folder, mode) == COMMITTED["receipts"][name][mode.value]
