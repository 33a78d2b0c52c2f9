"""What operators decided outlives a server that is killed: real servers, real SIGKILL."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from colibri.client.operator import Operator
from colibri.v1 import operator_pb2 as pb
from tests.support.serving import serving

WAIT_S = 60.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLIBRI_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def held(reply: pb.ClusterStatusReply, name: str) -> list[str]:
    return next(list(worker.held) for worker in reply.workers if worker.name == name)


def states(reply: pb.ClusterStatusReply) -> dict[str, str]:
    return {worker.name: worker.state for worker in reply.workers}


def test_drains_numbers_and_moves_outlive_a_killed_server(
    tiny_mixtral: Path, tmp_path: Path, home: Path
) -> None:
    listen = f"unix:{tmp_path / 's'}"
    with serving(tiny_mixtral, tmp_path, "--workers=4", listen=listen) as server:
        with Operator(server.target) as operator:
            operator.drain("w1", undo=False, timeout_s=WAIT_S)
            operator.scale(2, WAIT_S)
            operator.move(0, 0, "w2", "w0", WAIT_S)
            before = operator.status(experts=True)
        assert states(before) == {"w0": "serving", "w2": "serving", "w1": "drained"}
        assert server.end(signal.SIGKILL) == -signal.SIGKILL
    with serving(tiny_mixtral, tmp_path, "--workers=4", listen=listen) as server:
        with Operator(server.target) as operator:
            after = operator.status(experts=True)
            assert states(after) == states(before)
            assert [held(after, name) for name in ("w0", "w2")] == [
                held(before, name) for name in ("w0", "w2")
            ]
            assert "0:0" in held(after, "w2")
            [file] = (home / "state").glob("*.json")
            told = server.err.read_text()
            assert f"state: as it was kept in {file}: 2 workers (w0, w2); drained w1; 1 experts moved" in told
            operator.drain("w1", undo=True, timeout_s=WAIT_S)
            assert states(operator.status()) == dict.fromkeys(("w0", "w1", "w2"), "serving")
        server.end(signal.SIGKILL)
    # A command line that asks for something else than before is heeded; so is --fresh.
    with serving(tiny_mixtral, tmp_path, "--workers=2", listen=listen) as server:
        with Operator(server.target) as operator:
            assert len(states(operator.status())) == 2
        assert "state: --workers 2 counts: it was 4 when the state was kept" in server.err.read_text()
    with serving(tiny_mixtral, tmp_path, "--workers=4", "--fresh", listen=listen) as server:
        with Operator(server.target) as operator:
            assert states(operator.status()) == dict.fromkeys(("w0", "w1", "w2", "w3"), "serving")
        assert f"state: --fresh: what was kept is now {file}.old" in server.err.read_text()
        assert not file.exists()


def test_a_damaged_file_is_told_and_set_aside(tiny_mixtral: Path, tmp_path: Path, home: Path) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"colibri_desired_state": 1, "asked": {"workers": 2, "replicas": 1}})[:-9])
    with serving(tiny_mixtral, tmp_path, "--workers=2", f"--state={file}") as server:
        with Operator(server.target) as operator:
            assert states(operator.status()) == {"w0": "serving", "w1": "serving"}
            assert f"state: {file} cannot be used (state: expected JSON" in server.err.read_text()
            assert Path(f"{file}.damaged").exists()
            operator.drain("w0", undo=False, timeout_s=WAIT_S)
        assert json.loads(file.read_text())["drained"] == {"w0": ""}
    assert not home.exists()
