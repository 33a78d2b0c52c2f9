from __future__ import annotations

from collections.abc import Iterator

import pytest

from colibri.kernels.api import ComputeMode
from colibri.kernels.factory import make_backend
from tests.support.tiny_engine import TinyModel, make_tiny


@pytest.fixture(scope="session", params=["fp32", "bf16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyModel]:
    backend = make_backend("reference")
    yield TinyModel.open(
        make_tiny(tmp_path_factory.mktemp("tiny") / "m"), backend, ComputeMode(request.param)
    )
    backend.close()
