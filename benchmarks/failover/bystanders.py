"""What the machine itself makes of a death: processes that are none of Colibri's, each holding as much memory as a
worker, are killed beside the same load. A virtual machine gives what they held back to its host a moment later."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

from colibri.bench.chaos.plan import Limits, Phase, Plan
from colibri.bench.chaos.run import run_plan
from colibri.bench.chaos.verdict import Verdict

COUNT, EVERY_S = 6, 6.0
_PHASE = "bystanders"
#: Holds so many bytes in huge pages, as a worker does, until it is killed.
_HOLD = """
import mmap, sys, time
size, page = int(sys.argv[1]), 1 << 21
memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_HUGEPAGE)
for at in range(0, size, page):
    memory[at] = 1
print("held", flush=True)
time.sleep(3600)
"""


def deaths_of_others(plan: Plan, nbytes: int) -> Verdict:
    """The plan's server and load; its events are the deaths of processes that hold `nbytes` each."""
    quiet = replace(
        plan, phases=(Phase(_PHASE, EVERY_S * (COUNT + 1), ()),), limits=replace(Limits(), events=0)
    )
    begun, over = threading.Event(), threading.Event()
    with _holding(nbytes) as processes:

        def kill() -> None:
            begun.wait(600)
            for process in processes:
                if over.wait(EVERY_S):
                    return
                process.kill()

        def heard(line: str) -> None:
            if line.endswith(f"phase  {_PHASE}"):
                begun.set()

        killer = threading.Thread(target=kill, daemon=True)
        killer.start()
        try:
            return run_plan(quiet, tell=heard)[1]
        finally:
            over.set()
            begun.set()
            killer.join(60)


@contextlib.contextmanager
def _holding(nbytes: int) -> Iterator[list[subprocess.Popen[str]]]:
    with contextlib.ExitStack() as stack:
        processes = []
        for _ in range(COUNT):
            process = subprocess.Popen(
                [sys.executable, "-c", _HOLD, str(nbytes)], stdout=subprocess.PIPE, text=True
            )
            stack.callback(process.wait, 60)
            stack.callback(process.kill)
            processes.append(process)
            if process.stdout is None or process.stdout.readline() != "held\n":
                raise RuntimeError(f"a bystander did not come to hold {nbytes} bytes")
            stack.callback(process.stdout.close)
        yield processes
