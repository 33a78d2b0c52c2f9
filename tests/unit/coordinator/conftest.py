from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from tests.support.tiny_engine import TINY, TinyModel, make_tiny


@pytest.fixture(scope="module", params=["fp32", "bf16", "bf16-window"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    """Both modes; also with a sliding window shorter than the prompts and a tied head."""
    mode, *window = request.param.split("-")
    backend = make_backend("cpu", threads=2)
    params = replace(TINY, sliding_window=20, tied=True) if window else TINY
    opened = TinyModel.open(
        make_tiny(tmp_path_factory.mktemp("tiny") / "m", params), backend, ComputeMode(mode)
    )
    yield opened
    opened.tokenizer.close()
    backend.close()
