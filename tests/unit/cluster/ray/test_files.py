"""The deployment files: Ray's own schema, and what this repository promises of them."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.command import main

ROOT = Path(__file__).resolve().parents[4]
RAY_FILES = ("cluster.yaml", "cluster/ray/aws.yaml")


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
        code = main(["config", "show", "--config", str(ROOT / "colibri.yaml"), "serve", "--launcher=ray"])
    assert code == 0
    shown = dict(line.split()[:2] for line in output.getvalue().splitlines() if line.startswith("  "))
    assert (shown["workers"], shown["replicas"], shown["listen"]) == ("3", "2", "0.0.0.0:50051")
    file, options = load("cluster.yaml"), load("colibri.yaml")
    brought = {remote.replace("~", "/root") for remote in file["file_mounts"]}
    named = {value for value in options["serve"].values() if str(value).startswith("/root/")}
    assert named
    assert named <= brought
    hosts = [file["provider"]["head_ip"], *file["provider"]["worker_ips"]]
    assert int(shown["workers"]) == len(hosts)
    assert f"--node-ip-address={hosts[0]}" in file["head_start_ray_commands"][1]


def test_kuberay() -> None:
    job, service = yaml.safe_load_all((ROOT / "cluster/ray/kuberay.yaml").read_text())
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


@pytest.mark.slow
@pytest.mark.parametrize("name", RAY_FILES)
def test_hosts_install_the_wheel_that_was_shipped_and_no_name_from_a_registry(
    name: str, tmp_path: Path
) -> None:
    file = load(name)
    assert file["file_mounts"]["~/colibri/wheels"] == "dist"
    (command,) = [command for command in file["setup_commands"] if "pip install" in command]
    found = re.findall(r"pip install (.*?) &&", command)
    assert found == ['-q "$wheel[ray]"'], "one thing is installed"
    wheels = tmp_path / "colibri" / "wheels"
    wheels.mkdir(parents=True)
    make_wheel(wheels, "0.1", -60)
    newest = make_wheel(wheels, "0.2", 0)
    for _ in range(2):  # the second time there is nothing to do
        assert run(command, tmp_path) == 0
    python = tmp_path / "colibri/venv/bin/python"
    shown = subprocess.run([python, "-c", "import tiny; print(tiny.VERSION)"], capture_output=True, text=True)
    assert shown.stdout.strip() == "0.2"
    stamp = (tmp_path / "colibri/venv/installed").stat().st_mtime_ns
    assert run(command, tmp_path) == 0
    assert (tmp_path / "colibri/venv/installed").stat().st_mtime_ns == stamp
    newest.unlink()
    for wheel in wheels.iterdir():
        wheel.unlink()
    assert run(command, tmp_path) != 0, "without a wheel nothing is installed"


def make_wheel(folder: Path, version: str, age_s: float) -> Path:
    """A distribution of Colibri's name, with nothing in it and no requirements."""
    path = folder / f"colibri_moe-{version}-py3-none-any.whl"
    info = f"colibri_moe-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("tiny.py", f"VERSION = {version!r}\n")
        wheel.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: colibri-moe\nVersion: {version}\nProvides-Extra: ray\n",
        )
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    os.utime(path, (time.time() + age_s,) * 2)
    return path


def run(command: str, home: Path) -> int:
    """As a host does, without a network."""
    environ = {"HOME": str(home), "PATH": os.environ["PATH"], "PIP_NO_INDEX": "1"}
    return subprocess.run(["bash", "-c", command], env=environ, capture_output=True, check=False).returncode


def test_no_file_of_a_deployment_installs_by_name() -> None:
    for name in (*RAY_FILES, "cluster/ray/kuberay.yaml"):
        for line in (ROOT / name).read_text().splitlines():
            if "pip install" in line:
                assert "colibri-moe" not in line, f"{name}: {line}"
