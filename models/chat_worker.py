"""The process that renders chat templates: `python -m colibri.models.chat_worker`, started by chat_renderer.

On both pipes: 4 bytes of length, big-endian, then JSON. The first message brings the template, each further one
a chat. A template that computes for too long ends this process by SIGALRM, whatever it is doing and whoever
still lives; one that takes too much memory gets a MemoryError.
"""

from __future__ import annotations

import json
import resource
import signal
import struct
import sys
from pathlib import Path
from typing import Any, BinaryIO

from colibri.errors import CheckpointError, InvalidInput
from colibri.models.chat import ChatTemplate

_LENGTH = struct.Struct(">I")
#: Address space beyond what this process has when it starts.
_MEMORY_BYTES = 512 << 20


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's affair
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, used + _MEMORY_BYTES))
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    first = _read(source)
    if first is None:
        return
    limit_s = first["limit_s"]
    try:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        template = ChatTemplate(first["source"], bos_text=first["bos_text"], eos_text=first["eos_text"])
        signal.setitimer(signal.ITIMER_REAL, 0)
    except (CheckpointError, MemoryError) as error:
        _write(sink, {"error": str(error) or "out of memory"})
        return
    _write(sink, {})
    while (asked := _read(source)) is not None:
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            answer: dict[str, Any] = {
                "text": template.render(asked["messages"], asked["add_generation_prompt"])
            }
        except InvalidInput as error:
            got = error.message.removeprefix(f"{error.field}: expected {error.expected}, got ")
            answer = {"refused": [error.field, error.expected, got]}
        signal.setitimer(signal.ITIMER_REAL, 0)
        _write(sink, answer)


def _read(source: BinaryIO) -> Any:
    """None at the end."""
    head = source.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    return json.loads(source.read(_LENGTH.unpack(head)[0]))


def _write(sink: BinaryIO, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    sink.write(_LENGTH.pack(len(data)) + data)
    sink.flush()


if __name__ == "__main__":
    main()
