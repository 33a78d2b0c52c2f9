"""cluster.yaml as Colibri reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.cluster.ray.cluster_file import read_cluster_file
from colibri.cluster.ray.remote import host_command
from colibri.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
LOCAL = """
cluster_name: mine
provider: {type: local, head_ip: 10.1.0.1, worker_ips: [10.1.0.2, 10.1.0.3]}
auth: {ssh_user: op, ssh_private_key: /keys/id}
file_mounts: {"~/.ray/auth_token": "/tokens/one"}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(text)
    return path


def test_local(tmp_path: Path) -> None:
    cluster = read_cluster_file(write(tmp_path, LOCAL))
    assert cluster.hosts == ("10.1.0.1", "10.1.0.2", "10.1.0.3")
    assert (cluster.head, cluster.name, cluster.provider) == ("10.1.0.1", "mine", "local")
    assert (cluster.user, cluster.key, cluster.token) == ("op", Path("/keys/id"), Path("/tokens/one"))
    command = host_command(cluster, "10.1.0.2", "echo 'a b'")
    assert command[:3] == ["ssh", "-i", "/keys/id"]
    assert command[-2:] == ["op@10.1.0.2", "bash -lc 'echo '\"'\"'a b'\"'\"''"]


def test_the_repositorys_own() -> None:
    assert read_cluster_file(ROOT / "cluster.yaml").head == "10.0.0.11"
    cloud = read_cluster_file(ROOT / "cluster/ray/aws.yaml")
    assert (cloud.provider, cloud.hosts, cloud.head) == ("aws", (), "")
    assert cloud.key is None
    assert host_command(cloud, "host", "true")[1] == "-o"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected keys with values"),
        ("[1]", "expected keys with values"),
        ("a: [", "expected YAML"),
        (LOCAL.replace("cluster_name: mine", ""), "cluster_name: expected a text"),
        (LOCAL.replace("type: local, ", ""), "provider.type: expected a text"),
        (LOCAL.replace("[10.1.0.2, 10.1.0.3]", "10.1.0.2"), "provider.worker_ips: expected a list"),
        (LOCAL.replace("10.1.0.1", "-oProxyCommand=x"), "provider: expected a text"),
        (LOCAL.replace("ssh_user: op", "ssh_user: -x"), "auth.ssh_user: expected a text"),
        (
            LOCAL.replace("file_mounts: {", "file_mounts: [{").replace('one"}', 'one"}]'),
            "file_mounts: expected",
        ),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_cluster_file(write(tmp_path, text))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a readable file"):
        read_cluster_file(tmp_path / "none.yaml")
