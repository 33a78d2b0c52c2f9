"""Live progress of a load run, on stderr and only when that is a terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colibri.bench.load.result import Progress, RunResult
    from colibri.bench.load.runner import LoadRun

#: Repainting costs the machine that is measured.
_REPAINT_S = 0.5


def watch(run: LoadRun, requests: int | None, bound_s: float) -> RunResult:
    """The result of a run that was started, painted until it is over. requests: of the run, None: unknown.

    Raises DeadlineExpired after `bound_s` seconds. Without a terminal it only waits.
    """
    if not sys.stderr.isatty():
        return run.wait(bound_s)
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    until = time.monotonic() + bound_s
    before = run.progress()
    with Live(console=Console(stderr=True), auto_refresh=False, transient=True) as live:
        over = False
        while not over and time.monotonic() < until:
            over = run.join(_REPAINT_S)
            now = run.progress()
            live.update(Text(line(before, now, requests)), refresh=True)
            before = now
    return run.wait(max(0.0, until - time.monotonic()))


def line(before: Progress, now: Progress, requests: int | None) -> str:
    """Rates are those between two looks."""
    seconds = max(now.elapsed_s - before.elapsed_s, 1e-9)
    total = "" if requests is None else f" of {requests}"
    failed = f", {now.failed} FAILED" if now.failed else ""
    return (
        f"{now.elapsed_s:6.1f} s  {now.completed}{total} whole, {now.in_flight} in flight{failed}  "
        f"{(now.tokens - before.tokens) / seconds:.1f} tokens/s, "
        f"{(now.sent - before.sent) / seconds:.1f} requests/s"
    )
