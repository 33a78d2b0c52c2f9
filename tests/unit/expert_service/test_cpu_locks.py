"""Locks among real processes: the kernel's locks tell who has which CPU, and end with their holder."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from colibri.errors import ConfigError
from colibri.expert_service.cpu_locks import DEFAULT_FILE, NONE, OPTION, VARIABLE, CpuLocks, host_locks
from tests.support.cpu_holder import HOLDER, holder


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "cpus"


@pytest.fixture
def locks(file: Path) -> Iterator[CpuLocks]:
    locks = CpuLocks(file)
    yield locks
    locks.close()


def test_what_another_has_is_told_and_refused(file: Path, locks: CpuLocks) -> None:
    assert locks.taken() == {}
    with holder(file, 1, 2, 7, 4095) as one, holder(file, 3):
        taken = locks.taken()
        assert sorted(taken) == [1, 2, 3, 7, 4095]
        assert {cpu: pid for cpu, pid in taken.items() if pid == one.pid} == dict.fromkeys(
            (1, 2, 7, 4095), one.pid
        )
        assert locks.take([0, 2, 5]) == {2: one.pid}
        # Nothing of a lock that failed is kept.
        with holder(file, 0, 5):
            pass
        assert locks.take([0, 5]) == {}
        assert locks.taken() == taken  # one's own are not among them
    assert locks.take([1, 2, 3]) == {}


def test_claims_end_with_the_process_however_it_ends(file: Path, locks: CpuLocks) -> None:
    with holder(file, 0) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(10)
        assert locks.take([0]) == {}


def test_who_waits_gets_what_becomes_free(file: Path, locks: CpuLocks) -> None:
    with holder(file, 0) as process:
        waits: list[float] = []

        def sleep(seconds: float) -> None:
            waits.append(seconds)
            process.kill()
            process.wait(10)

        assert locks.take([0], wait_s=30.0, sleep=sleep) == {}
        assert len(waits) == 1


def test_a_wait_is_bounded(file: Path, locks: CpuLocks) -> None:
    now = [0.0]
    with holder(file, 0) as process:
        found = locks.take(
            [0], wait_s=1.0, clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds)
        )
        assert found == {0: process.pid}
        assert 1.0 <= now[0] < 1.2


def test_who_shares_does_so_with_those_who_do(file: Path, locks: CpuLocks) -> None:
    with holder(file, 0, how="share") as sharer, holder(file, 1) as alone:
        assert locks.take([0], share=True) == {}
        assert locks.take([1], share=True) == {}  # on request; the other one keeps it
        assert locks.taken() == {0: sharer.pid, 1: alone.pid}
        with holder(file, 0, how="share"):
            pass
        command = [sys.executable, "-c", HOLDER, str(file), "alone", "0"]
        refused = subprocess.run(command, input="", capture_output=True, text=True, timeout=30, check=True)
        assert refused.stdout.startswith("{0: ")


def test_a_parent_may_have_them_for_its_child(file: Path, locks: CpuLocks) -> None:
    with holder(file, 0, 1) as parent:
        assert locks.take([0, 1], on_behalf=parent.pid) == {}
        with holder(file, 2):
            found = locks.take([0, 2], on_behalf=parent.pid)
            assert set(found) == {0, 2}


def test_none_takes_no_notice(file: Path) -> None:
    nothing = host_locks({VARIABLE: NONE})
    with holder(file, 0):
        assert nothing.take([0]) == {}
        assert nothing.taken() == {}


def test_the_hosts_file_is_opened_once(file: Path) -> None:
    assert host_locks({VARIABLE: str(file)}) is host_locks({VARIABLE: str(file)})
    assert file.exists()
    assert DEFAULT_FILE.parent == Path("/dev/shm")


def test_every_user_may_open_it_whoever_came_first(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        CpuLocks(tmp_path / "cpus").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cpus").stat().st_mode) == 0o666


@pytest.mark.parametrize("what", ["missing", "folder", "link"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, what: str) -> None:
    path = tmp_path / "folder" / "cpus" if what == "missing" else tmp_path / "cpus"
    if what == "folder":
        path.mkdir()
    if what == "link":
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        ConfigError, match=f"{OPTION}: expected a file that can be opened, or none, got {path} "
    ):
        CpuLocks(path)
    assert not (tmp_path / "elsewhere").exists()
