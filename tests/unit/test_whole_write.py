"""A record is added whole or not at all, and a reader that stalls is an error with the file's name."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from colibri.whole_write import append_whole, write_whole

LIMITED = """
import resource, sys
from pathlib import Path
from colibri.whole_write import append_whole
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
append_whole(Path(sys.argv[1]), b"y" * 600 + b"\\n")
"""


def test_lines_are_added_and_replaced(tmp_path: Path) -> None:
    file = tmp_path / "records"
    append_whole(file, b"a\n")
    append_whole(file, b"b\n")
    assert file.read_bytes() == b"a\nb\n"
    write_whole(file, b"c\n")
    assert file.read_bytes() == b"c\n"


def test_writers_do_not_mix(tmp_path: Path) -> None:
    file = tmp_path / "records"

    def add(letter: str) -> None:
        for _ in range(50):
            append_whole(file, letter.encode() * 30_000 + b"\n")

    threads = [threading.Thread(target=add, args=(letter,)) for letter in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    lines = file.read_text().splitlines()
    assert len(lines) == 200
    assert all(len(set(line)) == 1 and len(line) == 30_000 for line in lines)


def test_no_half_of_a_record_stays(tmp_path: Path) -> None:
    """The file may not grow beyond 1,000 bytes; the second record would."""
    file = tmp_path / "records"
    file.write_bytes(b"x" * 600 + b"\n")
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    assert f"File too large: '{file}'" in done.stderr
    assert file.read_bytes() == b"x" * 600 + b"\n"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 1000


def test_a_full_device_is_named() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        append_whole(Path("/dev/full"), b"a\n")


def test_a_pipe_that_nobody_reads_is_an_error(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(TimeoutError, match=f"nobody reads it: '{pipe}'"):
        append_whole(pipe, b"a\n", bound_s=0.2)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    append_whole(pipe, b"a\n", bound_s=0.2)
    with pytest.raises(TimeoutError, match=f"nobody reads it: '{pipe}'"):
        append_whole(pipe, b"a" * (1 << 20), bound_s=0.2)
    os.close(reader)
