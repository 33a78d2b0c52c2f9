"""Progress of a load, as a terminal shows it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

from colibri.cli.progress import Loading

PAINT = """
from colibri.cli.progress import Loading
with Loading() as loading:
    for done in range(1, 4):
        loading.update("worker w0", done, 3)
"""


def paint(**environ: str) -> str:
    """What progress writes to a terminal as stderr."""
    leader, follower = pty.openpty()
    try:
        clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
        env = {**clean, "TERM": "xterm-256color", **environ}
        subprocess.run([sys.executable, "-c", PAINT], stderr=follower, env=env, timeout=60, check=True)
        return os.read(leader, 1 << 16).decode()
    finally:
        os.close(leader)
        os.close(follower)


def test_progress_is_painted_on_a_terminal_and_in_colour_only_if_wanted() -> None:
    assert "worker w0" in paint()
    assert "\x1b[3" in paint()
    plain = paint(NO_COLOR="1")
    assert "worker w0" in plain
    assert "\x1b[3" not in plain


def test_progress_is_silent_elsewhere() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PAINT], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == result.stderr == ""


def test_lines_of_the_log_stand_for_bars_where_a_load_is_long() -> None:
    now = 0.0
    told: list[str] = []
    loading = Loading(told.append, enabled=False, clock=lambda: now)
    for second in range(14):
        now = float(second)
        loading.update("worker w0", second * 10, 130)
        loading.update("worker w1", 5, 5)
    assert told == [
        "worker w0: 50 of 130, 5 s",
        "worker w1: 5 of 5, 5 s",
        "worker w0: 100 of 130, 10 s",
        "worker w0: 130 of 130, 13 s",
    ]
