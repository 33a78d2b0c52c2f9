"""The child's side of a confined process: it bounds itself, then answers one message after another.

Each pipe carries the lengths of a JSON object and of raw bytes (4 bytes each, big-endian), then the two. If work
takes too long, SIGPROF (CPU time of this process) or SIGALRM (time on the clock) ends the process, even after the
parent is gone. If it takes too much memory, Python code gets a MemoryError; other code ends by SIGABRT.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from colibri.errors import CheckpointError, InvalidInput

Message = tuple[dict[str, Any], bytes]
Answer = Callable[[dict[str, Any], bytes], Message]

LENGTHS = struct.Struct(">II")
#: Seconds on the clock for a second of CPU, and beside: who needs more waits for a busy machine, and no text is at
#: fault.
_PATIENCE, _PATIENCE_S = 5.0, 10.0
#: After messages of so many bytes the memory that they took is given back at once.
_LARGE_BYTES = 1 << 16
#: A process for long messages runs at a lower priority, so that answers go on beside it. It still gets a quarter of the
#: CPU time of a process of usual priority.
_LOWERED = 5


def serve(begin: Callable[[dict[str, Any], bytes], tuple[Answer, Message]]) -> None:
    """Runs a child. `begin` returns the answering function for the first message, and the first reply."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = _read(source)
    if first is None:
        return
    head, blob = first
    limits = head["limits"]
    if limits["idle_s"] is not None:
        os.nice(_LOWERED)
    _confine(limits["load_bytes"])
    _silence()
    try:
        _clocks(limits["load_s"])
        answer, reply = begin(head, blob)
        _clocks(0)
    except (CheckpointError, MemoryError) as error:
        _write(sink, ({"error": str(error)} if isinstance(error, CheckpointError) else {"memory": True}, b""))
        return
    _write(sink, reply)
    del first, head, blob, reply
    _give_back()
    _limit_memory(limits["answer_bytes"])
    while _comes(source, limits["idle_s"]) and (asked := _read(source)) is not None:
        _clocks(limits["answer_s"])
        try:
            reply = answer(*asked)
        except InvalidInput as error:
            got = error.message.removeprefix(f"{error.field}: expected {error.expected}, got ")
            reply = ({"refused": [error.field, error.expected, got]}, b"")
        except MemoryError:
            reply = ({"memory": True}, b"")
        _clocks(0)
        _write(sink, reply)
        large = len(asked[1]) + len(reply[1]) > _LARGE_BYTES
        del asked, reply
        if large:
            _give_back()


def _confine(memory: int) -> None:
    """Bounds memory. memory: bytes of address space beyond what this process has now."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    _limit_memory(memory)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def _limit_memory(memory: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    soft = used + memory if hard == resource.RLIM_INFINITY else min(used + memory, hard)
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def _silence() -> None:
    """Silences stderr, which is the parent's. Rust's allocator and panics would write lines of their own; the parent
    reports what happened.
    """
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)


def on_the_clock(cpu_s: float) -> float:
    """Returns how long work with this much CPU time may last on the clock, seconds."""
    return cpu_s * _PATIENCE + _PATIENCE_S


def _clocks(cpu_s: float) -> None:
    """Sets the time bounds; 0: none."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, on_the_clock(cpu_s) if cpu_s else 0.0)


def _give_back() -> None:
    import ctypes

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # a C library without it
        return
    trim(0)


def _comes(source: BinaryIO, idle_s: float | None) -> bool:
    """Waits for a message. Returns False if none came within `idle_s` seconds; None: waits for ever."""
    ready, _, _ = select.select([source], [], [], idle_s)
    return bool(ready)


def _read(source: BinaryIO) -> Message | None:
    """Reads a message; None at the end."""
    head = source.read(LENGTHS.size)
    if len(head) < LENGTHS.size:
        return None
    size, more = LENGTHS.unpack(head)
    return json.loads(source.read(size)), source.read(more)


def _write(sink: BinaryIO, message: Message) -> None:
    head = json.dumps(message[0]).encode()
    sink.write(LENGTHS.pack(len(head), len(message[1])) + head)
    sink.write(message[1])
    sink.flush()
