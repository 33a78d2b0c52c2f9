"""A server as a chaos run starts it: one that does not come up is told with its own words, and none is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from colibri.bench.chaos.operator import Operator, find, whats_missing
from colibri.bench.chaos.operator import serving as workers_that_serve
from colibri.bench.chaos.plan import Action, EventSpec, ServeSpec
from colibri.bench.chaos.serving import serve_command, serving
from colibri.bench.chaos.worker_faults import WorkerFaults
from colibri.errors import ColibriError, DeadlineExpired
from colibri.security.channel import ChannelSecurity
from colibri.security.plane_secret import PlaneSecret


def test_one_that_does_not_come_up(tmp_path: Path) -> None:
    command = serve_command(tmp_path / "absent", ServeSpec("absent", 1, 1))
    with pytest.raises(DeadlineExpired, match=r"ended before it was ready: .*absent"), serving(command):
        pass


def test_one_that_is_too_slow(tiny_mixtral: Path) -> None:
    command = serve_command(tiny_mixtral, ServeSpec(str(tiny_mixtral), 1, 1))
    with (
        pytest.raises(DeadlineExpired, match=r"was not ready within 0\.01 s"),
        serving(command, ready_s=0.01),
    ):
        pass


def known_by(folder: Path) -> list[str]:
    return [f"--worker-secret-file={folder / 'secret'}"]


def test_its_workers_take_faults_and_count_them(tiny_mixtral: Path, tmp_path: Path) -> None:
    slow = EventSpec(Action.SLOW, at_s=(0.0,), for_s=1.0, delay_s=0.001)
    command = serve_command(
        tiny_mixtral, ServeSpec(str(tiny_mixtral), 2, 2), (), [f"--worker-secret-file={tmp_path / 'secret'}"]
    )
    with serving(command) as server, Operator(server.target) as operator:
        status = operator.status(experts=True)
        assert whats_missing(status) == ""
        assert [worker.name for worker in workers_that_serve(status)] == ["w0", "w1"]
        assert all(worker.held for worker in status.workers)
        faults = WorkerFaults(ChannelSecurity(secret=PlaneSecret.read(tmp_path / "secret", "file")))
        worker = find(status, "w1")
        faults.add(worker, 0, slow, 1)
        faults.add(worker, 1, slow, 2)
        faults.remove(worker, 0)
        faults.clear()
        assert faults.injected() == {}
        with pytest.raises(ColibriError, match="one of w0, w1, got w9"):
            find(status, "w9")
        with pytest.raises(ColibriError, match="nobody"):
            operator.drain("nobody", False, 5.0)


def test_workers_without_the_flag_take_none(tiny_mixtral: Path, tmp_path: Path) -> None:
    command = serve_command(
        tiny_mixtral, ServeSpec(str(tiny_mixtral), 1, 1), (), [f"--worker-secret-file={tmp_path / 'secret'}"]
    )
    command.remove("--allow-faults")
    event = EventSpec(Action.FULL_QUEUE, at_s=(0.0,), for_s=1.0)
    with serving(command) as server, Operator(server.target) as operator:
        worker = find(operator.status(), "w0")
        shown = ChannelSecurity(secret=PlaneSecret.read(tmp_path / "secret", "file"))
        with pytest.raises(ColibriError, match="worker w0"):
            WorkerFaults(shown).add(worker, 0, event, 1)
