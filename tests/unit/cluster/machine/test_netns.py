from __future__ import annotations

import os
from pathlib import Path

import pytest

from colibri.cluster.machine.netns import NetworkPlace, check_network_place, parse_network_place
from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.workers.launch import LaunchOptions, worker_command
from colibri.errors import ConfigError, InvalidInput

PIN = WorkerPinning(0, (0,), 1, False)


def test_what_is_read_is_where_it_runs() -> None:
    assert parse_network_place("w1=ns-1,10.7.0.2", "f") == ("w1", NetworkPlace("ns-1", "10.7.0.2"))
    assert parse_network_place("w1=n,fd00::2", "f")[1].listen == "[fd00::2]:0"
    assert NetworkPlace("n", "10.7.0.2").listen == "10.7.0.2:0"


@pytest.mark.parametrize(
    "text", ["", "w0", "w0=ns", "w0=,10.0.0.1", "=ns,10.0.0.1", "w0=a/b,10.0.0.1", "w0=-x,10.0.0.1"]
)
def test_nonsense_names_the_option(text: str) -> None:
    with pytest.raises(ConfigError, match="--worker-netns: expected WORKER=NAMESPACE,ADDRESS"):
        parse_network_place(text, "--worker-netns")


def test_an_address_is_an_ip() -> None:
    with pytest.raises(ConfigError, match="an IP address behind the comma"):
        parse_network_place("w0=ns,example.org", "--worker-netns")


@pytest.mark.skipif(os.geteuid() != 0, reason="as another user the refusal is another one")
def test_a_namespace_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "there").touch()
    check_network_place(NetworkPlace("there", "10.0.0.1"), "f", tmp_path)
    with pytest.raises(ConfigError, match=r"f: expected a namespace in .*, got gone"):
        check_network_place(NetworkPlace("gone", "10.0.0.1"), "f", tmp_path)


def test_the_command_line_of_a_worker(tmp_path: Path) -> None:
    options = LaunchOptions(
        tmp_path, "bf16", memory=5, allow_faults=True, networks={"w1": NetworkPlace("n", "10.0.0.2")}
    )
    plain = worker_command(options, "w0", 3, tmp_path / "s", PIN)
    assert {"--incarnation=3", f"--listen=unix:{tmp_path}/s", "--memory=5", "--allow-faults"} <= set(plain)
    assert not {"--yielding-start", "--no-shared-memory", "ip"} & set(plain)
    there = worker_command(options, "w1", 4, tmp_path / "s", PIN, yielding=True)
    assert there[:4] == ["ip", "netns", "exec", "n"]
    assert {"--listen=10.0.0.2:0", "--no-shared-memory", "--yielding-start"} <= set(there)


def test_a_hang_is_seen_in_more_than_one_look() -> None:
    with pytest.raises(InvalidInput, match=r"poll_s: expected above 0, up to hung_after_s \(1\), got 2"):
        LaunchOptions(Path("m"), "bf16", poll_s=2.0, hung_after_s=1.0)
