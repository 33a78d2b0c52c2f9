"""Signals of services, in processes of their own: a handler belongs to a whole process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

STOP = """
import os, sys, time
from colibri.cli.signals import StopSignals
stop = StopSignals(lambda: os.write(1, b"abandoned\\n"))
print("waiting", flush=True)
print("got", stop.wait(), flush=True)
time.sleep(60)
"""
UNWIND = """
import time
from colibri.cli.signals import Terminated, sigterm_unwinds
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
from colibri.cli.signals import interrupts_kept
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
#: The signal comes to a thread that does not handle it, while the main one waits without an end.
ASIDE = """
import os, signal, threading, time
from colibri.cli.signals import handlers_run

def send():
    time.sleep(0.3)  # the main thread waits by then; if not, this is an easier test, not a failing one
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)
    threading.Event().wait()

reading, _ = os.pipe()
try:
    with handlers_run():
        threading.Thread(target=send, daemon=True).start()
        print("waiting", flush=True)
        os.read(reading, 1)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
LEFT = """
import os, signal
from colibri.cli.signals import StopSignals, handlers_run

def files(): return len(os.listdir("/proc/self/fd"))

before = files(), signal.getsignal(signal.SIGURG)
for _ in range(5):
    with handlers_run():
        os.kill(os.getpid(), signal.SIGURG)
print("waiting", flush=True)
while files() > before[0]:
    pass
assert signal.getsignal(signal.SIGURG) == before[1]
with handlers_run():
    stop = StopSignals(lambda: os.write(1, b"abandoned"))
os.kill(os.getpid(), signal.SIGTERM)
print("got", stop.wait(), flush=True)
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


def test_an_interrupt_that_was_dropped_is_told_again() -> None:
    process = start(KEPT)
    assert process.stdout is not None
    process.send_signal(signal.SIGINT)
    assert process.stdout.read() == "again\n"
    assert process.wait(10) == 0
    process.stdout.close()


def test_a_handler_runs_whoever_was_told_and_whatever_the_main_thread_waits_for() -> None:
    process = start(ASIDE)
    assert process.communicate(timeout=60)[0] == "interrupted\n"
    assert process.returncode == 0


def test_nothing_of_it_is_left_and_a_service_keeps_its_own_signals() -> None:
    process = start(LEFT)
    assert process.communicate(timeout=60)[0] == "got 15\n"
    assert process.returncode == 0
