from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from colibri.cli.checks.finding import Finding, Verdict
from colibri.cli.doctor import examine, report
from colibri.cli.main import main
from tests.unit.cli.checks.machines import machine, named


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", "--json", "--listen=127.0.0.1:0"])
    document = json.loads(capsys.readouterr().out)
    verdicts = {finding["verdict"] for finding in document["findings"]}
    assert code == (1 if "fail" in verdicts else 0)
    assert document["verdict"] == max(verdicts, key=["ok", "warn", "fail"].index)
    names = {finding["name"] for finding in document["findings"]}
    assert {
        "kernel path",
        "threads",
        "NUMA",
        "huge pages",
        "open files",
        "processes",
        "locked memory",
    } <= names
    assert {"/dev/shm", "cards", "Python", "packages", "127.0.0.1:0", "home", "room"} <= names
    assert all(finding["why"] for finding in document["findings"] if finding["verdict"] != "ok")


def test_a_taken_address(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        main(["doctor", f"--listen={listen}"])
    out = capsys.readouterr().out
    assert f"  warn  {listen}" in out
    assert f"mend: ss -ltnp 'sport = :{listen.rpartition(':')[2]}'" in out


def test_one_check_that_breaks_does_not_hide_the_others(tmp_path: Path) -> None:
    def broken() -> NoReturn:
        raise OSError("no such device")

    findings = examine(replace(machine(tmp_path), cpu_paths=broken, affinity=frozenset()), ["127.0.0.1:1"])
    assert "OSError: no such device" in named(findings, "the rest").why
    assert named(findings, "huge pages").verdict is Verdict.OK
    assert {finding.area for finding in findings} == {
        "processor", "memory", "limits", "GPU", "software", "network", "storage",
    }  # fmt: skip


def test_report() -> None:
    lines = report(
        [
            Finding("cpu", "path", Verdict.OK, "avx2", "no avx512"),
            Finding("cpu", "clock", Verdict.WARN, "hpet", "slow", "echo tsc"),
            Finding("memory", "room", Verdict.FAIL, "0 B", "nothing fits"),
        ]
    )
    assert lines == [
        "cpu",
        "  ok    path                        avx2  (no avx512)",
        "  warn  clock                       hpet",
        "        slow",
        "        mend: echo tsc",
        "",
        "memory",
        "  fail  room                        0 B",
        "        nothing fits",
        "",
        "1 ok, 1 warn, 1 fail",
    ]
