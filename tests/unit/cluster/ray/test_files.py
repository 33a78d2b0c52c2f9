"""The deployment files: Ray's own schema, and what this repository promises of them."""

from __future__ import annotations

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
import yaml

from colibri.cli.verbs import build_parser

ROOT = Path(__file__).resolve().parents[4]
RAY_FILES = ("cluster.yaml", "cluster/aws.yaml")


def load(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((ROOT / name).read_text())
    return found


@pytest.mark.parametrize("name", RAY_FILES)
def test_ray_accepts_it(name: str) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(load(name)))


def test_ray_refuses_what_it_does_not_know() -> None:
    """So that the test above can fail."""
    from jsonschema import ValidationError  # type: ignore[import-untyped]
    from ray.autoscaler._private.util import prepare_config, validate_config

    with pytest.raises(ValidationError, match="colibri"):
        validate_config(prepare_config(load("cluster.yaml") | {"colibri": {}}))


@pytest.mark.parametrize("name", RAY_FILES)
def test_ray_is_started_as_promised(name: str) -> None:
    file = load(name)
    starts = [
        command
        for key in ("head_start_ray_commands", "worker_start_ray_commands")
        for command in file[key]
        if "ray start" in command
    ]
    assert len(starts) == 2
    for command in starts:
        assert "RAY_AUTH_MODE=token" in command
        assert "RAY_USAGE_STATS_ENABLED=0" in command
    head = starts[0]
    assert "--dashboard-host=127.0.0.1" in head
    assert "RAY_enable_autoscaler_v2=0" in head
    assert "~/.ray/auth_token" in file["file_mounts"]


@pytest.mark.parametrize("name", RAY_FILES)
def test_the_head_ends_by_starting_colibri(name: str) -> None:
    file = load(name)
    last = file["head_start_ray_commands"][-1]
    assert last == "RAY_AUTH_MODE=token colibri deploy --config ~/colibri/colibri.yaml"
    assert file["file_mounts"]["~/colibri/colibri.yaml"] == "colibri.yaml"


@pytest.mark.parametrize("name", RAY_FILES)
def test_the_private_ca_stays_with_the_operator(name: str) -> None:
    file = load(name)
    assert not any("ca.key" in local for local in file["file_mounts"].values())
    assert "rm -f ~/colibri/coordinator.*" in file["worker_setup_commands"]


def test_serve_takes_the_options_and_the_hosts_have_their_files() -> None:
    """Every path of colibri.yaml below the home of root is one that cluster.yaml brings there."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        args = build_parser().parse_args(["serve", "--config", str(ROOT / "colibri.yaml"), "--launcher=ray"])
    assert (args.workers, args.replicas, args.listen) == (3, 2, "0.0.0.0:50051")
    file, options = load("cluster.yaml"), load("colibri.yaml")
    brought = {remote.replace("~", "/root") for remote in file["file_mounts"]}
    named = {value for value in options["serve"].values() if str(value).startswith("/root/")}
    assert named
    assert named <= brought
    hosts = [file["provider"]["head_ip"], *file["provider"]["worker_ips"]]
    assert args.workers == len(hosts)
    assert f"--node-ip-address={hosts[0]}" in file["head_start_ray_commands"][1]


def test_kuberay() -> None:
    job, service = yaml.safe_load_all((ROOT / "cluster/kuberay.yaml").read_text())
    spec = job["spec"]["rayClusterSpec"]
    assert (job["kind"], service["kind"]) == ("RayJob", "Service")
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    words = job["spec"]["entrypoint"].split()
    assert words[:2] == ["colibri", "serve"]
    assert "--launcher=ray" in words
    (group,) = spec["workerGroupSpecs"]
    assert group["replicas"] == load("colibri.yaml")["serve"]["workers"]
    assert '"{\\"colibri_worker\\": 1}"' in group["rayStartParams"]["resources"]
