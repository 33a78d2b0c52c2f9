"""Acts as another user of the machine: in a forked process, since that user may not be able to start Python here."""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

#: nobody.
STRANGER = 65534
_BOUND_S = 60

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def as_stranger(act: Callable[[], Any], user: int = STRANGER) -> Any:
    """What `act` returns, as JSON has it, in a process of `user` without groups. It must not use gRPC, which does not
    live on after a fork. Raises AssertionError with what it raised."""
    # What Python loads when it is first needed, that user may not be able to read.
    for name in ("idna", "ascii", "utf-8", "latin-1"):
        codecs.lookup(name)
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_BOUND_S)
        os.close(readable)
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            os.umask(0o022)
            answer = {"value": act()}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        with os.fdopen(writable, "w") as out:
            out.write(json.dumps(answer))
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as told:
        text = told.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the stranger's process did not end in order"
    found = json.loads(text)
    assert "error" not in found, found["error"]
    return found["value"]


@contextmanager
def stranger_locks(path: Path, user: int = STRANGER) -> Iterator[int]:
    """The id of another user's process that locks all of a file and never lets go."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            descriptor = os.open(path, os.O_RDWR)
            fcntl.lockf(descriptor, fcntl.LOCK_EX)
            os.write(writable, b"x")
            while True:
                signal.pause()
        finally:
            os._exit(1)
    os.close(writable)
    try:
        assert os.read(readable, 1) == b"x", "the stranger got no lock"
        yield child
    finally:
        os.close(readable)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def refusal(act: Callable[[], Any]) -> str:
    """The name of the OSError that `act` raises, empty where it raises none."""
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return ""
