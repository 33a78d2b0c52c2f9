"""Files of secrets: for one reader alone, whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from colibri.errors import ConfigError
from colibri.security.secret_file import MAX_BYTES, read_file, stamp, write_file


def secret(folder: Path, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_bytes(b"s")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_its_owners_alone(mode: int, tmp_path: Path) -> None:
    assert read_file(secret(tmp_path, mode), "f", secret=True) == b"s"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o620, 0o660, 0o777, 0o601])
def test_open_to_others(mode: int, tmp_path: Path) -> None:
    path = secret(tmp_path, mode)
    with pytest.raises(ConfigError) as caught:
        read_file(path, "--tls-key", secret=True)
    text = f"--tls-key: expected a file that others cannot read or write (chmod 600), got {path}, mode {mode:04o}"
    assert caught.value.message == text
    assert read_file(path, "--tls-cert", secret=False) == b"s"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_owners(tmp_path: Path) -> None:
    path = secret(tmp_path, 0o640)
    assert read_file(path, "f", secret=True) == b"s"  # root's, readable by its group: a mounted secret
    os.chown(path, 12345, -1)
    path.chmod(0o600)
    with pytest.raises(
        ConfigError, match=r"f: expected a file of user 0 or root, got .*secret, of user 12345"
    ):
        read_file(path, "f", secret=True)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name, text in (
        ("none", "No such file or directory"),
        ("pipe", "f: expected a regular file"),
        (".", "f: expected a regular file"),
    ):
        with pytest.raises(ConfigError, match=text):
            read_file(tmp_path / name, "f", secret=True)
    big = secret(tmp_path)
    os.truncate(big, MAX_BYTES + 1)
    with pytest.raises(ConfigError, match=f"f: expected at most {MAX_BYTES} bytes"):
        read_file(big, "f", secret=True)


def test_written_whole_and_closed(tmp_path: Path) -> None:
    path = tmp_path / "key"
    before = os.umask(0)
    try:
        write_file(path, b"one", secret=True)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        first = stamp(path)
        write_file(path, b"two", secret=True)
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"two", 0o600)
        assert stamp(path) != first
        write_file(path, b"for all", secret=False)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError, match="No such file"):
        write_file(tmp_path / "no" / "key", b"x", secret=True)
    assert stamp(tmp_path / "no") is None
