"""Links and folders that another user plants where all users write: none leads our tidying to files of ours."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from colibri.address import claim_unix_path
from colibri.cluster.ray.leftovers import end
from colibri.cluster.workers.run_folder import RunFolder, sweep
from colibri.errors import ConfigError
from tests.support.tries import Tries

NOBODY = 65534


def precious(folder: Path) -> Callable[[], bool]:
    """A folder of ours with a file, a folder and a lock in it; whether all is as it was."""
    (folder / "below").mkdir(parents=True)
    names = ("key.pem", "owner.lock", "below/file")
    for name in names:
        (folder / name).write_text("kept")
    return lambda: all((folder / name).read_text() == "kept" for name in names)


def plant(root: Path, *parts: str, to: Path) -> None:
    """A link at root/parts, the folders above it made."""
    link = root.joinpath(*parts)
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(to)


def test_what_is_left_of_ray_is_removed_through_no_link(tmp_path: Path, tries: Tries) -> None:
    """`colibri down` of root's, where any user may have made /tmp/ray."""
    for name in ("proc", "shm"):
        (tmp_path / name).mkdir()
    places = (("ray",), ("ray", "session_1"), ("ray", "session_1", "sockets"), ("colibri-run-x",))
    for number, parts in enumerate(places):
        temporary, ours = tmp_path / f"tmp{number}", tmp_path / f"ours{number}"
        target = ours
        for name in ("session_1", "sockets")[max(0, len(parts) - 1) :] if parts[0] == "ray" else ():
            target /= name
        kept = precious(target)
        plant(temporary, *parts, to=ours)
        end(tmp_path / "proc", temporary, tmp_path / "shm")
        assert kept(), parts
    kept = precious(tmp_path / "memory")
    plant(tmp_path / "shm", "plasmaX", to=tmp_path / "memory")
    plant(tmp_path / "shm", "rayX", to=tmp_path / "memory" / "key.pem")
    end(tmp_path / "proc", tmp_path / "tmp0", tmp_path / "shm")
    assert kept()
    tries("planted links", len(places) + 2)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's folder")
def test_what_another_user_made_is_left(tmp_path: Path, tries: Tries) -> None:
    for name in ("proc", "shm"):
        (tmp_path / name).mkdir()
    theirs = tmp_path / "tmp" / "ray" / "session_1" / "sockets"
    theirs.mkdir(parents=True)
    (theirs / "raylet").touch()
    run = tmp_path / "tmp" / "colibri-run-theirs"
    run.mkdir()
    (run / "owner.lock").touch()
    for path in (tmp_path / "tmp" / "ray", run):
        os.chown(path, NOBODY, NOBODY)
    end(tmp_path / "proc", tmp_path / "tmp", tmp_path / "shm")
    sweep(tmp_path / "tmp")
    assert (theirs / "raylet").exists()
    assert (run / "owner.lock").exists()
    tries("folders of another user", 2)


def test_run_folders_are_swept_through_no_link(tmp_path: Path, tries: Tries) -> None:
    draw, shared = random.Random(), tmp_path / "shared"
    kept = precious(tmp_path / "ours")
    shared.mkdir()
    for number in range(40):
        name = f"colibri-run-{number}"
        what = draw.randrange(5)
        if what == 0:
            plant(shared, name, to=tmp_path / "ours")
        elif what == 1:
            (shared / name).write_text("no folder")
        else:
            plant(
                shared,
                name,
                "owner.lock",
                to=draw.choice((tmp_path / "ours" / "key.pem", Path("/dev/null"), shared)),
            )
            if what == 2:
                plant(shared, name, "inner", to=tmp_path / "ours" / "below")
    ours = RunFolder(shared)
    assert ours.path.stat().st_mode & 0o777 == 0o700
    ours.close()
    assert kept()
    tries("planted links", 40)


def test_a_socket_is_put_on_no_link(tmp_path: Path, tries: Tries) -> None:
    kept = precious(tmp_path / "ours")
    places = [tmp_path / name for name in ("a", "b", "c")]
    for place, to in zip(places, ("ours/key.pem", "ours", "nothing"), strict=True):
        place.symlink_to(tmp_path / to)
        with pytest.raises(ConfigError):
            claim_unix_path(str(place))
    assert kept()
    tries("planted links", len(places))
