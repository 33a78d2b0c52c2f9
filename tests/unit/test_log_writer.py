"""Lines for a descriptor that may stop taking them: never waited for, dropped when there are too many, counted."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from pathlib import Path

import pytest

from colibri.log_writer import LogWriter
from tests.support.clusters import eventually
from tests.support.outlets import FullPipe, full_disk

WAIT_S = 30.0


def numbers(text: str) -> list[int]:
    return [int(found) for found in re.findall(r"^line (\d+)$", text, re.MULTILINE)]


def missing(text: str) -> int:
    return sum(
        int(found) for found in re.findall(r"^\[(\d+) lines? of this log missing: ", text, re.MULTILINE)
    )


def test_lines_arrive_whole_and_in_order(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as file:
        writer = LogWriter(file.fileno())
        for number in range(1000):
            writer.put(f"line {number}\n".encode())
        assert writer.flush(WAIT_S)
        assert writer.close(WAIT_S)
    assert numbers((tmp_path / "log").read_text()) == list(range(1000))
    assert writer.dropped == 0


def test_a_full_pipe_holds_nobody_and_tells_the_count_once_it_is_read() -> None:
    with contextlib.closing(FullPipe()) as pipe:
        end = os.dup(pipe.end)
        writer = LogWriter(end, 4096)

        def speak() -> None:
            for number in range(10_000):
                writer.put(f"line {number}\n".encode())

        threads = [threading.Thread(target=speak, daemon=True) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
            assert not thread.is_alive()
        assert not writer.flush(0.01)
        before = writer.dropped
        assert before > 30_000
        reading = pipe.drain()
        assert writer.flush(WAIT_S)
        eventually(lambda: missing(pipe.text) == before, WAIT_S, "the count")
        assert len(numbers(pipe.text)) == 40_000 - before
        writer.put(b"line 7\n")
        eventually(lambda: pipe.text.endswith("line 7\n"), WAIT_S, "lines after the gap")
        assert writer.close(WAIT_S)
        os.close(end)
        reading.join(WAIT_S)


def test_without_a_limit_nothing_is_dropped() -> None:
    with contextlib.closing(FullPipe()) as pipe:
        end = os.dup(pipe.end)
        writer = LogWriter(end, None)
        for number in range(50_000):
            writer.put(f"line {number}\n".encode())
        reading = pipe.drain()
        assert writer.close(WAIT_S)
        os.close(end)
        reading.join(WAIT_S)
        eventually(lambda: numbers(pipe.text)[-1:] == [49_999], WAIT_S, "the last line")
        assert numbers(pipe.text) == list(range(50_000))


@pytest.mark.parametrize("kind", ["full device", "pipe without reader", "closed"])
def test_an_error_costs_the_line_and_is_told(kind: str) -> None:
    reader, writer_end = os.pipe()
    os.close(reader)
    fd = {
        "full device": os.open("/dev/full", os.O_WRONLY),
        "pipe without reader": writer_end,
        "closed": 9999,
    }[kind]
    code = {"full device": errno.ENOSPC, "pipe without reader": errno.EPIPE, "closed": errno.EBADF}[kind]
    heard: list[OSError] = []
    writer = LogWriter(fd, failed=heard.append)
    for number in range(3):
        writer.put(f"line {number}\n".encode())
    assert writer.flush(WAIT_S)
    assert writer.dropped == 3
    assert writer.close(WAIT_S)
    assert {error.errno for error in heard} == {code}


def test_a_disk_that_has_room_again(tmp_path: Path) -> None:
    """The line that the full disk cut ends, the count stands on a line of its own, the log goes on."""
    try:
        with full_disk(tmp_path / "disk") as fd:
            writer = LogWriter(fd)
            for number in range(20):
                writer.put(f"line {number} {'x' * 500}\n".encode())
            assert writer.flush(WAIT_S)
            assert 0 < writer.dropped <= 20
            (tmp_path / "disk" / "filler").unlink()
            writer.put(b"line 99\n")
            assert writer.close(WAIT_S)
            text = (tmp_path / "disk" / "log").read_text()
            assert missing(text) == writer.dropped
            assert text.endswith("line 99\n")
            assert "No space left on device" in text
    except PermissionError as error:
        pytest.skip(str(error))


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_without_a_thread_the_last_lines_are_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with (tmp_path / "log").open("wb") as file:
        writer = LogWriter(file.fileno())
        for number in range(1000):
            writer.put(f"line {number}{' ' * 10}\n".encode())
        writer.put(b"x" * 100_000 + b"\n")
        assert writer.flush(WAIT_S)
    text = (tmp_path / "log").read_text()
    assert text.count("\n") == 1001
    assert text.endswith("x" * 100_000 + "\n")


def test_without_a_thread_a_full_pipe_is_waited_for_no_longer_than_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with contextlib.closing(FullPipe()) as pipe:
        writer = LogWriter(pipe.end)
        writer.put(b"line 1\n")
        assert not writer.flush(0.2)
