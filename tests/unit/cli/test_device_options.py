"""Options about devices, as `serve` reads them."""

from __future__ import annotations

import pytest

from colibri.cli.cluster_options import cluster_options
from colibri.cli.pinning_options import pinning_options
from colibri.cli.verbs import build_parser
from colibri.deployment.pinning import PinningOptions
from colibri.errors import ConfigError
from colibri.expert_service.gpu_options import GpuOptions


def test_options_of_serve() -> None:
    def read(*argv: str) -> PinningOptions:
        return pinning_options(build_parser().parse_args(["serve", "m", "--config=none", *argv]))

    assert read().devices == ("cpu",)
    assert read("--device=cuda:1,cuda").devices == ("cuda:1", "cuda")
    args = build_parser().parse_args(
        ["serve", "m", "--config=none", "--device=cuda", "--gpu-block-size=64", "--experts-on=cuda/mma-sm90"]
    )
    found = cluster_options(args)
    assert found.gpu == GpuOptions(block_size=64)
    assert found.experts_on == "cuda/mma-sm90"


def test_sizes_of_a_gpu_without_one() -> None:
    args = build_parser().parse_args(["serve", "m", "--config=none", "--dma-buffer-size=65536"])
    with pytest.raises(ConfigError, match="--dma-buffer-size: expected a GPU by --device, got cpu"):
        cluster_options(args)


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--device=auto,cuda", "expected auto, or cpu, cuda or cuda:N"),
        ("--device=cuda:x", "expected auto, or cpu, cuda or cuda:N"),
        ("--gpu-block-size=33", "expected a multiple of 32 from 32 to 1024, got '33'"),
        ("--experts-on=cuda/mma", "expected cuda/simt or cuda/mma-smNN, got 'cuda/mma'"),
    ],
)
def test_what_is_no_device(argument: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["serve", "m", "--config=none", argument])
    assert text in capsys.readouterr().err


def test_int4_without_a_gpu() -> None:
    args = build_parser().parse_args(["serve", "m", "--config=none", "--int4-on=cpu"])
    with pytest.raises(ConfigError, match="--int4-on: expected a GPU by --device, got cpu"):
        cluster_options(args)
