"""When Ray calls a host dead: one place says it, the cluster files and the docs follow."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from colibri.cluster.ray.options import RayOptions
from colibri.cluster.ray.times import ABSENT_AFTER_S, HEALTH_CHECK, HOST_BACK_S, HOST_SILENT_S

ROOT = Path(__file__).resolve().parents[4]


def test_no_healthy_host_is_killed_in_haste() -> None:
    assert 10 <= HOST_SILENT_S <= 15
    assert HOST_SILENT_S < HOST_BACK_S < ABSENT_AFTER_S
    assert RayOptions().absent_after_s == ABSENT_AFTER_S


@pytest.mark.parametrize("name", ["cluster.yaml", "cluster/ray/aws.yaml"])
def test_ray_up_files_follow(name: str) -> None:
    start = " ".join(yaml.safe_load((ROOT / name).read_text())["head_start_ray_commands"])
    found = {key: int(value) for key, value in re.findall(r"(RAY_health_check_\w+)=(\d+)", start)}
    assert found == dict(HEALTH_CHECK)


def test_kuberay_follows() -> None:
    job, _ = yaml.safe_load_all((ROOT / "cluster/ray/kuberay.yaml").read_text())
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    found = {
        each["name"]: int(each["value"])
        for each in head["env"]
        if each["name"].startswith("RAY_health_check")
    }
    assert found == dict(HEALTH_CHECK)


def test_the_docs_follow() -> None:
    text = (ROOT / "docs/cluster.md").read_text()
    for seconds in (HOST_SILENT_S, HOST_BACK_S, ABSENT_AFTER_S):
        assert f"{seconds:g} s" in text
