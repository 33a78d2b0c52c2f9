"""Options of the Ray launcher: refused where they would do nothing, and where Ray cannot do what they ask."""

from __future__ import annotations

import argparse

import pytest

from colibri.cli.cluster_options import cluster_options, ray_options
from colibri.cli.verbs import build_parser
from colibri.cluster.ray.options import RayOptions, Spread
from colibri.errors import ConfigError


def serve(*argv: str) -> argparse.Namespace:
    found: argparse.Namespace = build_parser().parse_args(["serve", "m", "--config=none", *argv])
    return found


def test_local_unless_asked() -> None:
    assert cluster_options(serve()).ray is None


def test_ray() -> None:
    assert cluster_options(serve("--launcher=ray")).ray == RayOptions()
    found = cluster_options(
        serve("--launcher=ray", "--spread=any", "--place-timeout=7", "--ray-address=a:1")
    ).ray
    assert found == RayOptions("a:1", spread=Spread.ANY, place_s=7.0)


@pytest.mark.parametrize("option", ["--spread=any", "--place-timeout=7", "--ray-address=a:1"])
def test_without_ray_they_are_refused(option: str) -> None:
    name, _, value = option.partition("=")
    with pytest.raises(ConfigError, match=f"{name}: expected --launcher ray beside it, got {value}"):
        cluster_options(serve(option))


def test_what_ray_cannot_do() -> None:
    with pytest.raises(ConfigError, match="--workers: expected 1 or more, with --launcher ray, got 0"):
        cluster_options(serve("--launcher=ray", "--workers=0"))
    with pytest.raises(ConfigError, match="--worker-netns: expected --launcher local beside it"):
        ray_options(serve("--launcher=ray", "--worker-netns=w0=n,10.0.0.1"))
