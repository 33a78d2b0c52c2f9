"""Options of the Ray launcher: refused where they would do nothing, and where Ray cannot do what they ask."""

from __future__ import annotations

import argparse
from pathlib import Path

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
    assert cluster_options(serve("--launcher=ray", "--state=none")).ray == RayOptions()
    found = cluster_options(
        serve(
            "--launcher=ray",
            "--spread=any",
            "--place-timeout=7",
            "--ray-address=a:1",
            "--worker-lease=60",
            "--state=none",
        )
    ).ray
    assert found == RayOptions("a:1", spread=Spread.ANY, place_s=7.0, lease_s=60.0)


def test_the_next_coordinator_finds_workers_and_secret_beside_the_kept_state(tmp_path: Path) -> None:
    state = tmp_path / "kept.json"
    first, second = (cluster_options(serve("--launcher=ray", f"--state={state}")) for _ in range(2))
    assert first.ray is not None
    assert first.ray.state == tmp_path / "kept.json.workers"
    assert first.secret == second.secret
    assert (tmp_path / "kept.json.workers.secret").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "option", ["--spread=any", "--place-timeout=7", "--ray-address=a:1", "--worker-lease=60"]
)
def test_without_ray_they_are_refused(option: str) -> None:
    name, _, value = option.partition("=")
    with pytest.raises(ConfigError, match=f"{name}: expected --launcher ray beside it, got {value}"):
        cluster_options(serve(option))


def test_what_ray_cannot_do() -> None:
    with pytest.raises(ConfigError, match="--workers: expected 1 or more, with --launcher ray, got 0"):
        cluster_options(serve("--launcher=ray", "--workers=0"))
    with pytest.raises(ConfigError, match="--worker-netns: expected --launcher local beside it"):
        ray_options(serve("--launcher=ray", "--worker-netns=w0=n,10.0.0.1"))
