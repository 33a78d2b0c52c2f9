"""What processes hold, and what did not come back."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace

from colibri.bench.chaos.resources import growth, held_by


def test_this_process_is_seen() -> None:
    before = held_by(os.getpid())
    memory = os.memfd_create("mine")
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    with socket.socket():
        now = held_by(os.getpid())
    stop.set()
    thread.join()
    os.close(memory)
    assert now.fds - before.fds == 2
    assert now.sockets - before.sockets == 1
    assert now.mapped - before.mapped == 1
    assert now.threads - before.threads == 1
    assert now.rss_bytes >= now.anonymous_bytes > 0


def test_growth_compares_the_ends() -> None:
    held = held_by(os.getpid())
    wave = [replace(held, fds=held.fds + extra) for extra in (0, 5, 1, 9, 30, 2, 9, 3, 0, 9)]
    grown = growth(list(enumerate(wave)), share=0.3)
    assert grown["fds"] == 4
    assert grown["threads"] == 0
    assert growth(list(enumerate(wave[:5]))) == {}
