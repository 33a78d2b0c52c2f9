from __future__ import annotations

from dataclasses import replace

import pytest

from colibri.deployment.compute_mode import choose_mode, rounding_error
from colibri.kernels.api import ComputeMode
from colibri.models.checkpoint import Checkpoint
from colibri.models.random_mixtral import random_mixtral
from tests.conftest import TINY


@pytest.fixture(scope="module", params=["bf16", "fp16", "fp32"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("modes") / "m"
    return Checkpoint.open(random_mixtral(folder, replace(TINY, layers=1, experts=2, dtype=request.param)))


def test_default_follows_the_checkpoint(checkpoint: Checkpoint) -> None:
    log: list[str] = []
    expected = ComputeMode.BF16 if checkpoint.config.dtype == "bf16" else ComputeMode.FP32
    assert choose_mode(checkpoint, None, log.append) is expected
    assert choose_mode(checkpoint, "fp32", log.append) is ComputeMode.FP32
    assert log == []


def test_a_rounding_mode_says_what_it_costs(checkpoint: Checkpoint) -> None:
    log: list[str] = []
    assert choose_mode(checkpoint, "bf16", log.append) is ComputeMode.BF16
    error = rounding_error(checkpoint)
    if checkpoint.config.dtype == "bf16":
        assert error == 0
        assert log == []
    else:
        # Eight bits of mantissa: at most 2^-9 relative, about a third of that on average.
        assert 2**-11 < error < 2**-9
        assert log == [
            f"bf16 mode rounds the {checkpoint.config.dtype} weights: relative RMS error {error:.1e} (first expert)"
        ]
