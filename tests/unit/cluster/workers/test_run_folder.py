from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from colibri.cluster.workers.run_folder import RunFolder, sweep
from colibri.errors import ConfigError

KILLED_OWNER = """
import os, signal, sys
from pathlib import Path
import pytest

from colibri.cluster.workers.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
(folder.path / "0.1.sock").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_private_and_gone_after_close(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "0.1.sock").touch()
    folder.close()
    folder.close()
    assert list(tmp_path.iterdir()) == []


def test_one_owner_does_not_sweep_another(tmp_path: Path) -> None:
    first, second = RunFolder(tmp_path), RunFolder(tmp_path)
    assert first.path.is_dir()
    assert second.path.is_dir()
    first.close()
    second.close()


def test_what_a_killed_owner_left_is_swept(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED_OWNER, str(tmp_path)], check=False, timeout=60)
    left = list(tmp_path.iterdir())
    assert len(left) == 1
    before = len(os.listdir("/proc/self/fd"))
    sweep(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_foreign_folders_stay(tmp_path: Path) -> None:
    (tmp_path / "colibri-run-without-lock").mkdir()
    (tmp_path / "something-else").mkdir()
    sweep(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_path_too_long_for_sockets_names_the_variable(tmp_path: Path) -> None:
    parent = tmp_path / ("x" * 72)
    parent.mkdir()
    folder = RunFolder(parent)
    with pytest.raises(ConfigError, match=r"TMPDIR: expected a path of at most 71 bytes.*--transport tcp"):
        folder.check_sockets(["w0", "w10"])
    folder.close()
    short = RunFolder(Path("/tmp"))
    short.check_sockets(["w0"])
    short.close()


def test_a_folder_that_cannot_be_made_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="TMPDIR: expected a folder that can be written"):
        RunFolder(tmp_path / "absent")
