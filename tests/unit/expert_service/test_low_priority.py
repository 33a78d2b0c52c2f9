from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from colibri.expert_service.low_priority import LOWERED, call_lowered, iterate_lowered


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_work_is_lowered_and_the_caller_is_not() -> None:
    before = niceness()
    assert call_lowered(niceness) == LOWERED
    assert list(iterate_lowered(niceness() for _ in range(3))) == [LOWERED] * 3
    assert niceness() == before


def test_errors_come_out_where_the_items_are_used() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("broken")

    found = iterate_lowered(items())
    assert next(found) == 1
    with pytest.raises(KeyError, match="broken"):
        next(found)
    with pytest.raises(ZeroDivisionError):
        call_lowered(lambda: 1 / 0)


def test_closing_early_ends_the_thread_and_the_source() -> None:
    ended = threading.Event()
    go_on = threading.Semaphore(1)

    def items() -> Iterator[int]:
        try:
            for number in range(1000):
                assert go_on.acquire(timeout=10)
                yield number
        finally:
            ended.set()

    found = iterate_lowered(items())
    assert next(found) == 0
    found.close()  # type: ignore[attr-defined]
    go_on.release()
    assert ended.wait(10)
    until = time.monotonic() + 10
    while any(thread.name == "colibri-lowered" for thread in threading.enumerate()):
        assert time.monotonic() < until
        time.sleep(0.01)
