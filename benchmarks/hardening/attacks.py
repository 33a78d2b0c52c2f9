"""All attacks in their long form, with counts of tries; threads and native code under stress and sanitisers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.table import Line, Outcome
from tests.sanitize.modes import MODES
from tests.support.tries import of_junit

ROOT = Path(__file__).resolve().parents[2]
#: Names how long threads are under stress, seconds, in tests as here.
VARIABLE = "COLIBRI_TEST_STRESS_S"
SECONDS = float(os.environ.get(VARIABLE, "600"))
#: Among the attacks, since the line `stress` has the long form.
_SHORT_S = 60.0
_ATTACKS_S = 5400.0
_SANITIZE_S = 3600.0
_THREADS = "import json, sys; from tests.attacks.thread_stress import run; print(json.dumps(run(float(sys.argv[1]))))"


def lines() -> list[Line]:
    return [
        Line(
            "attacks",
            "red team list and CVE classes: tests/attacks, long forms",
            "all refused or bounded",
            attacks,
        ),
        Line(
            "stress",
            f"threads on shared structures, switch interval 1 us, {SECONDS / 60:g} min; ASan, UBSan, TSan",
            "0 errors",
            stress,
        ),
    ]


@dataclass(frozen=True, slots=True)
class Ran:
    """A run of pytest: tests, and those of them that did not pass."""

    tests: int
    failed: tuple[str, ...]
    tries: Mapping[str, int]

    @property
    def good(self) -> bool:
        return self.tests > 0 and not self.failed


def attacks() -> Outcome:
    ran = _ran(
        [sys.executable, "-m", "pytest", "-q", "-m", "attacks or not attacks", "tests/attacks"],
        _ATTACKS_S,
        {VARIABLE: f"{_SHORT_S:g}"},
    )
    tries = sum(ran.tries.values())
    value = f"{ran.tests - len(ran.failed)} of {ran.tests} tests passed; {tries:,} tries of {len(ran.tries)} kinds"
    detail: dict[str, object] = {"tries": dict(sorted(ran.tries.items())), "failed": list(ran.failed)}
    return Outcome(value, ran.good and tries > 0, detail=detail)


def stress() -> Outcome:
    told, good, detail = [], True, dict[str, object]()
    done = subprocess.run(
        [sys.executable, "-c", _THREADS, str(SECONDS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=SECONDS + 600,
        check=False,
    )
    if done.returncode:
        good = False
        told.append(f"threads: {done.stderr.strip().splitlines()[-1:]}")
        detail["threads"] = done.stderr[-4000:]
    else:
        counts: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
        told.append(f"threads: {sum(counts.values()):,} operations on {len(counts)} structures, 0 errors")
        detail["threads"] = counts
    for mode in MODES:
        ran = _ran(["make", "sanitize", f"MODE={mode.name}"], _SANITIZE_S, through_make=True)
        good = good and ran.good
        told.append(f"{mode.name}: {ran.tests - len(ran.failed)} of {ran.tests} tests passed")
        detail[mode.name] = {"tests": ran.tests, "failed": list(ran.failed)}
    return Outcome("; ".join(told), good, detail=detail)


def _ran(
    command: Sequence[str],
    timeout_s: float,
    variables: Mapping[str, str] = MappingProxyType({}),
    *,
    through_make: bool = False,
) -> Ran:
    """A process that ends by a sanitiser's report leaves no file: that is no test and so no success."""
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        option = f"--junitxml={junit}"
        command = [*command, f"ARGS={option}" if through_make else option]
        env = {**os.environ, **variables}
        done = subprocess.run(command, cwd=ROOT, stdout=sys.stderr, timeout=timeout_s, check=False, env=env)
        if not junit.exists():
            return Ran(0, (f"ended with {done.returncode}",), {})
        cases = [case for case in ET.parse(junit).getroot().iter("testcase") if case.find("skipped") is None]
        failed = [
            f"{case.get('classname')}::{case.get('name')}"
            for case in cases
            if case.find("failure") is not None or case.find("error") is not None
        ]
        if done.returncode and not failed:
            failed = [f"ended with {done.returncode}"]
        return Ran(len(cases), tuple(failed), of_junit(junit))
