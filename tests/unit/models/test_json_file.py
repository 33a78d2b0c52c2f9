"""The JSON reader: bounded, regular files only, and nothing that is JSON in Python alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from colibri.errors import CheckpointError
from colibri.models.json_file import open_regular, parse_object, read_bounded


def test_a_pipe_is_refused_without_waiting_for_its_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match=r"pipe: expected a regular file, got something else$"):
        open_regular(tmp_path / "pipe")
    with pytest.raises(CheckpointError, match=r"null: expected a regular file, got something else$"):
        open_regular(Path("/dev/null"))


def test_no_descriptor_is_left(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        for name in ("pipe", "absent", "."):
            with pytest.raises(CheckpointError):
                open_regular(tmp_path / name)
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("size", [0, 1, 9, 10])
def test_a_file_may_be_as_long_as_its_bound(tmp_path: Path, size: int) -> None:
    (tmp_path / "f").write_bytes(b"x" * size)
    assert read_bounded(tmp_path / "f", 10) == b"x" * size


def test_one_byte_more_is_refused_by_its_size(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 11)
    with pytest.raises(CheckpointError, match=r"f: expected at most 10 bytes, got 11$"):
        read_bounded(tmp_path / "f", 10)


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_only_python_calls_json_is_refused(word: str) -> None:
    with pytest.raises(
        CheckpointError, match=f"x: expected a JSON object, got none: {word} is no JSON number"
    ):
        parse_object(f'{{"a": [{word}]}}'.encode(), "x")
