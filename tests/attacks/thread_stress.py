"""Threads on the real shared structures, with the interpreter switching between them every microsecond.

`run(seconds)` is what the short test, `make attacks` and the Reach table call. Which structure belongs to whom is
docs/threads.md.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.attacks.stress.case import Case, Round
from tests.attacks.stress.cluster import CASES as CLUSTER
from tests.attacks.stress.process import CASES as PROCESS
from tests.attacks.stress.router import CASES as ROUTER
from tests.attacks.stress.server import CASES as SERVER
from tests.attacks.stress.worker import CASES as WORKER

CASES: Sequence[Case] = (*ROUTER, *WORKER, *CLUSTER, *PROCESS, *SERVER)
SWITCH_S = 1e-6
#: Of one round of one structure, which is new in each: much goes wrong only at first.
ROUND_S = 0.05
#: A thread that has not come back after so long hangs.
_HANG_S = 30.0


def run(seconds: float, cases: Sequence[Case] = CASES) -> dict[str, int]:
    """Goes round the structures until `seconds` are over, each at least once. Operations by structure; raises what an
    operation raised, and AssertionError where a structure is not in order afterwards or a thread hangs."""
    before = sys.getswitchinterval()
    done: Counter[str] = Counter()
    until = time.monotonic() + seconds
    sys.setswitchinterval(SWITCH_S)
    try:
        while True:
            for case in cases:
                done[case.name] += _round(case)
                if time.monotonic() >= until and len(done) == len(cases):
                    return dict(done)
    finally:
        sys.setswitchinterval(before)


@dataclass(slots=True)
class _Outcome:
    counts: list[int] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)


def _round(case: Case) -> int:
    made: Round = case.begin()
    outcome, over, start = _Outcome(), threading.Event(), threading.Barrier(len(made.operations))

    def repeat(operation: Callable[[], object]) -> None:
        count = 0
        try:
            start.wait(_HANG_S)
            while not over.is_set():
                operation()
                count += 1
        except BaseException as error:  # told by the thread that waits for this one
            outcome.errors.append(error)
            over.set()
        outcome.counts.append(count)

    threads = [
        threading.Thread(target=repeat, args=(operation,), name=f"stress-{case.name}", daemon=True)
        for operation in made.operations
    ]
    for thread in threads:
        thread.start()
    over.wait(ROUND_S)
    over.set()
    made.wake()
    until = time.monotonic() + _HANG_S
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    hung = sum(thread.is_alive() for thread in threads)
    assert not hung, f"{case.name}: {hung} of {len(threads)} threads hang"
    if outcome.errors:
        raise AssertionError(f"{case.name}: {outcome.errors[0]!r}") from outcome.errors[0]
    made.check()
    return sum(outcome.counts)
