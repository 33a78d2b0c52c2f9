"""Keepers of the head, over real processes that stand for Ray's and for the server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.cluster.ray.keep_head import PARTS, missing, parts_of
from colibri.cluster.ray.keeper import group_of, start_keeper
from colibri.cluster.ray.server_state import ServerFiles, ServerState, log_lines
from tests.support.clusters import eventually, is_alive, kill

SOON_S = 30.0
#: Of `ray start`: it leaves a GCS and a raylet behind, and returns.
RAY_START = """
for part in gcs/gcs_server raylet/raylet; do
    bash -c "exec -a $part sleep 120" < /dev/null > /dev/null 2>&1 &
done
set -m  # a minder: in a group of its own
bash -c "exec -a colibri-minder sleep 120" < /dev/null > /dev/null 2>&1 &
sleep 0.3
echo started >> {log}
"""
SERVER = """
import json, os, sys, time
code = int(open({code!r}).read())
print("said", sys.argv[1:], file=sys.stderr, flush=True)
print(json.dumps({{"target": "127.0.0.1:1", "pid": os.getpid()}}) if code == 0 else "no", flush=True)
if code:
    sys.exit(code)
time.sleep(120)
"""


def test_what_is_missing() -> None:
    before = {"GCS": 5, "raylet": 6}
    now = {5: "/ray/gcs/gcs_server --x", 6: "/ray/raylet/raylet", 9: "/ray/dashboard/dashboard.py"}
    assert parts_of(now) == {"GCS": 5, "raylet": 6, "dashboard": 9}
    assert missing(before, now) == []
    assert missing(before, {**now, 5: "another process under that number"}) == ["GCS"]
    assert missing(before, {5: now[5]}) == ["raylet"]
    assert missing({"GCS": 5}, {5: now[5]}) == ["raylet"], "it died before anybody looked"


@contextlib.contextmanager
def ended_after(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("part", ["GCS", "raylet"])
def test_a_head_whose_part_died_is_started_anew_as_a_whole(tmp_path: Path, part: str) -> None:
    log = tmp_path / "starts"
    command = ["bash", "-c", RAY_START.format(log=log)]
    first = subprocess.Popen(command, start_new_session=True)
    assert first.wait(SOON_S) == 0
    before = parts_of(group_of(Path("/proc"), first.pid))
    assert set(before) == {"GCS", "raylet"}
    keeper = start_keeper(
        "colibri.cluster.ray.keep_head", ["--keeper", str(first.pid), *command], tmp_path / "log"
    )
    with ended_after(keeper):
        eventually(lambda: comm(keeper.pid) == "raylet-keeper", SOON_S, "`ray stop` finds it")
        kill(before[part])
        eventually(lambda: log.read_text().count("started") == 2, SOON_S, "Ray is started anew")
        assert not any(is_alive(pid) for pid in before.values()), "nothing of the old one is left"
        minders = [pid for pid in all_pids() if command_of(pid) == "colibri-minder 120"]
        assert len(minders) == 2, "what is no part of Ray goes on"
        assert f"gone: {part}" in (tmp_path / "log").read_text()
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(SOON_S) == 0
    left = [pid for pid in all_pids() if named_part(pid)]
    assert len(left) == 2, "what runs is Ray's to end"
    for pid in (*left, *minders):
        kill(pid)


def test_an_end_that_is_meant_is_not_undone(tmp_path: Path) -> None:
    """As `ray stop` does it: the keeper and the raylet get SIGTERM at once."""
    log = tmp_path / "starts"
    command = ["bash", "-c", RAY_START.format(log=log)]
    first = subprocess.Popen(command, start_new_session=True)
    assert first.wait(SOON_S) == 0
    keeper = start_keeper(
        "colibri.cluster.ray.keep_head", ["--keeper", str(first.pid), *command], tmp_path / "log"
    )
    with ended_after(keeper):
        eventually(lambda: comm(keeper.pid) == "raylet-keeper", SOON_S, "it has begun")
        for pid in all_pids():
            if named_part(pid) or command_of(pid) == "colibri-minder 120":
                kill(pid)
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(SOON_S) == 0
    assert log.read_text().count("started") == 1


def test_a_server_that_died_is_started_anew_until_its_keeper_is_told_to_stop(tmp_path: Path) -> None:
    files, keeper = kept(tmp_path, 0)
    with ended_after(keeper):
        first = serving(files, 0)
        assert not files.hold(), "one keeper for one server"
        kill(first.pid)
        second = serving(files, first.pid)
        assert is_alive(second.pid)
        keeper.send_signal(signal.SIGTERM)
        assert keeper.wait(SOON_S) == 0
        assert not is_alive(second.pid)
    state = files.read()
    assert state is not None
    assert state.phase == "stopped"
    assert not files.is_kept()
    _, text = log_lines(tmp_path / "serve.log", 0)
    assert text.count("said") == 2
    assert "was killed by SIGKILL" in text


def test_a_server_dies_with_its_keeper(tmp_path: Path) -> None:
    files, keeper = kept(tmp_path, 0)
    with ended_after(keeper):
        server = serving(files, 0)
    # The stand-in does not ask the kernel for it, as `colibri serve --parent-pid` does.
    assert f"--parent-pid={keeper.pid}" in command_of(server.pid)
    kill(server.pid)


def test_a_wrong_command_line_stays_wrong(tmp_path: Path) -> None:
    files, keeper = kept(tmp_path, 2)
    with ended_after(keeper):
        assert keeper.wait(SOON_S) == 1
    state = files.read()
    assert state is not None
    assert (state.phase, state.why.startswith("said")) == ("failed", True)


def kept(folder: Path, code: int) -> tuple[ServerFiles, subprocess.Popen[bytes]]:
    (folder / "code").write_text(str(code))
    (folder / "server.py").write_text(SERVER.format(code=str(folder / "code")))
    arguments = [str(folder), str(folder / "serve.log"), sys.executable, str(folder / "server.py")]
    return ServerFiles(folder), start_keeper(
        "colibri.cluster.ray.keep_server", arguments, folder / "serve.log"
    )


def serving(files: ServerFiles, after: int) -> ServerState:
    eventually(
        lambda: (state := files.read()) is not None and state.phase == "serving" and state.pid != after,
        SOON_S,
        "it serves",
    )
    state = files.read()
    assert state is not None
    return state


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def comm(pid: int) -> str:
    return (Path("/proc") / str(pid) / "comm").read_text().strip()


def command_of(pid: int) -> str:
    try:
        return (Path("/proc") / str(pid) / "cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def named_part(pid: int) -> bool:
    return command_of(pid) in {f"{part} 120" for part in PARTS.values()}


def test_a_state_that_is_none_is_passed_over(tmp_path: Path) -> None:
    files = ServerFiles(tmp_path)
    assert files.read() is None
    (tmp_path / "server.json").write_text(json.dumps({"phase": "serving", "other": 1}))
    assert files.read() is None
    files.ask_grace(3.0)
    assert files.grace_s(1.0) == 3.0
