"""The cache of fetched weights: whole or not there, resumed, shared between processes, never wrong bytes."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri.errors import CheckpointError, OverBudget, WeightsUnavailable
from colibri.models.packs import blob_cache
from colibri.models.packs.blob_cache import CHUNK, BlobCache

#: The same in every process of a test.
CONTENT = random.Random(21).randbytes(2 * CHUNK + 4096)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Reads:
    """Reads of `content`; fails[n]: the n-th raises."""

    def __init__(self, content: bytes = CONTENT, fails: tuple[int, ...] = ()) -> None:
        self.ranges: list[tuple[int, int]] = []
        self._content = content
        self._fails = fails

    def __call__(self, begin: int, end: int) -> bytes:
        self.ranges.append((begin, end))
        if len(self.ranges) - 1 in self._fails:
            raise WeightsUnavailable("the link is cut")
        return self._content[begin:end]


def obtain(root: Path, read: Callable[[int, int], bytes], nbytes: int = len(CONTENT)) -> Path:
    return BlobCache(root).obtain(DIGEST, nbytes, "the blob", read)


def test_once_for_all(tmp_path: Path) -> None:
    reads = Reads()
    cache = BlobCache(tmp_path)
    path = cache.obtain(DIGEST, len(CONTENT), "the blob", reads)
    assert path.read_bytes() == CONTENT
    assert cache.fetched == len(CONTENT)
    assert obtain(tmp_path, reads) == path
    assert reads.ranges == [(0, CHUNK), (CHUNK, 2 * CHUNK), (2 * CHUNK, len(CONTENT))]
    assert list(path.parent.iterdir()) == [path]


def test_what_came_before_a_failure_is_not_read_again(tmp_path: Path) -> None:
    with pytest.raises(WeightsUnavailable, match="cut"):
        obtain(tmp_path, Reads(fails=(1,)))
    reads = Reads()
    assert obtain(tmp_path, reads).read_bytes() == CONTENT
    assert reads.ranges == [(CHUNK, 2 * CHUNK), (2 * CHUNK, len(CONTENT))]


def test_other_bytes_are_refused_and_not_kept(tmp_path: Path) -> None:
    other = bytes(len(CONTENT))
    with pytest.raises(
        CheckpointError,
        match=rf"the blob: sha256: expected {DIGEST}, got {hashlib.sha256(other).hexdigest()}",
    ):
        obtain(tmp_path, Reads(other))
    reads = Reads()
    assert obtain(tmp_path, reads).read_bytes() == CONTENT
    assert reads.ranges[0] == (0, CHUNK)


def test_a_part_that_is_too_long_is_begun_anew(tmp_path: Path) -> None:
    part = BlobCache(tmp_path).path(DIGEST).with_suffix(".part")
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT + b"more")
    assert obtain(tmp_path, Reads()).read_bytes() == CONTENT


def test_discard(tmp_path: Path) -> None:
    path = obtain(tmp_path, Reads())
    BlobCache(tmp_path).discard(DIGEST)
    assert not path.exists()
    BlobCache(tmp_path).discard(DIGEST)


def test_a_full_disk_is_said_before_anything_is_read(tmp_path: Path) -> None:
    reads = Reads()
    with pytest.raises(OverBudget, match=r"the blob: disk of .*: expected \d+ bytes free, got \d+"):
        obtain(tmp_path, reads, 1 << 60)
    assert reads.ranges == []


def fetch(root: str) -> None:
    """Of one process: prints how many bytes it read itself, and whether the whole is right."""
    reads = Reads()
    whole = obtain(Path(root), reads).read_bytes() == CONTENT
    print(sum(end - begin for begin, end in reads.ranges), whole)


def test_processes_share_one_fetch(tmp_path: Path) -> None:
    # Not by multiprocessing: gRPC, if a test before this one used it, may hold a process that forks for ever.
    program = f"import sys; from {__name__} import fetch; fetch(sys.argv[1])"
    command = [sys.executable, "-c", program, str(tmp_path)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[4])
        for _ in range(4)
    ]
    got = [process.communicate(timeout=60)[0].split() for process in processes]
    assert sum(int(read) for read, _ in got) == len(CONTENT)
    assert [whole for _, whole in got] == ["True"] * 4


def test_a_fetch_of_others_that_stands_still_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_cache, "STALLED_S", 0.2)
    reading, go_on = threading.Event(), threading.Event()

    def read(begin: int, end: int) -> bytes:
        reading.set()
        assert go_on.wait(60)
        return CONTENT[begin:end]

    first = threading.Thread(target=obtain, args=(tmp_path, read))
    first.start()
    try:
        assert reading.wait(60)
        with pytest.raises(WeightsUnavailable, match=r"the blob: another process .* nothing came for 0.2 s"):
            obtain(tmp_path, Reads())
    finally:
        go_on.set()
        first.join(60)
    assert obtain(tmp_path, Reads(fails=(0,))).read_bytes() == CONTENT
