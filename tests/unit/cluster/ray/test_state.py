"""What a coordinator writes down, and the next one reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.ray.record import WorkerRecord, read_record, write_whole
from colibri.cluster.ray.session import Host
from colibri.cluster.ray.state import DeploymentState
from colibri.cluster.workers.worker_process import Ready
from colibri.errors import ConfigError

RECORD = WorkerRecord(
    "d",
    "f",
    "w0",
    Ready("10.0.0.1:9", 7, 321),
    WorkerPinning(0, (0, 1), 2, False),
    Host("one", "10.0.0.1"),
    99,
)


def test_the_next_coordinator_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "workers"
    first = DeploymentState(path)
    first.begun(7)
    first.note(RECORD)
    first.begun(9)
    with pytest.raises(ConfigError, match="a file of this coordinator alone"):
        DeploymentState(path)
    first.close()
    second = DeploymentState(path)
    assert second.deployment == first.deployment
    assert second.workers == {"w0": RECORD}
    assert second.incarnation == 9, "none is given twice, also those that never ran"
    second.ended("w0", 6)
    assert second.workers, "another life of it ended"
    second.ended("w0", 7)
    second.close()
    third = DeploymentState(path)
    assert (third.workers, third.incarnation) == ({}, 9)
    third.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    first, second = DeploymentState(None), DeploymentState(None)
    assert first.deployment != second.deployment
    first.note(RECORD)
    assert first.workers == {"w0": RECORD}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"workers": 3}', '{"workers": {"w0": {"name": "w0"}}}', "\0"]
)
def test_a_damaged_file_is_an_empty_one(tmp_path: Path, text: str) -> None:
    path = tmp_path / "workers"
    path.write_text(text)
    state = DeploymentState(path)
    assert (state.workers, state.incarnation) == ({}, 0)
    state.close()


def test_a_record(tmp_path: Path) -> None:
    path = tmp_path / "seat-0.json"
    assert read_record(path) is None
    write_whole(path, RECORD.fields())
    assert read_record(path) == RECORD
    assert path.stat().st_mode & 0o777 == 0o600
    write_whole(path, {**RECORD.fields(), "place": 1})
    assert read_record(path) is None
