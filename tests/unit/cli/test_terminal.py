"""Signals of services, in processes of their own: a handler belongs to a whole process."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys

import pytest

STOP = """
import os, sys, time
from colibri.cli.terminal import StopSignals
stop = StopSignals(lambda: os.write(1, b"abandoned\\n"))
print("waiting", flush=True)
print("got", stop.wait(), flush=True)
time.sleep(60)
"""
UNWIND = """
import time
from colibri.cli.terminal import Terminated, sigterm_unwinds
try:
    with sigterm_unwinds():
        try:
            print("waiting", flush=True)
            time.sleep(60)
        finally:
            print("closing", flush=True)
except Terminated:
    print("terminated", flush=True)
"""
KEPT = """
import contextlib, time
from colibri.cli.terminal import interrupts_kept
with interrupts_kept() as check:
    check()
    with contextlib.suppress(KeyboardInterrupt):  # as CPython does within a callback
        print("waiting", flush=True)
        time.sleep(60)
    try:
        check()
    except KeyboardInterrupt:
        print("again", flush=True)
"""
PAINT = """
from colibri.cli.progress import Loading
with Loading() as loading:
    for done in range(1, 4):
        loading.update("worker w0", done, 3)
"""


def start(program: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_first_signal_asks_and_second_ends(number: signal.Signals) -> None:
    process = start(STOP)
    assert process.stdout is not None
    process.send_signal(number)
    assert process.stdout.readline() == f"got {number.value}\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.read() == "abandoned\n"
    assert process.wait(10) == 128 + signal.SIGTERM
    process.stdout.close()


def test_sigterm_closes_what_is_open() -> None:
    process = start(UNWIND)
    process.terminate()
    out, _ = process.communicate(timeout=10)
    assert out == "closing\nterminated\n"
    assert process.returncode == 0


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


def test_an_interrupt_that_was_dropped_is_told_again() -> None:
    process = start(KEPT)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == "again\n"
    assert process.wait(10) == 0
    process.stdout.close()
