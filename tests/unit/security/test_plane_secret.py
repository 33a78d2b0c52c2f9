"""The secret of a deployment: drawn, handed over by a descriptor, kept in a file, never shown."""

from __future__ import annotations

import os
import pickle
import stat
import threading
from pathlib import Path

import pytest

from colibri.errors import ConfigError
from colibri.security.access import Access, Rules
from colibri.security.plane_secret import PlaneSecret, kept_secret, receive_secret
from colibri.security.roles import Scope

SECRET = PlaneSecret("s" * 43)


def test_drawn_from_the_given_source() -> None:
    assert PlaneSecret.draw(lambda count: bytes(range(count))) == PlaneSecret.draw(
        lambda count: bytes(range(count))
    )
    drawn = {PlaneSecret.draw().text for _ in range(64)}
    assert len(drawn) == 64
    assert {len(text) for text in drawn} == {43}  # 256 bits


@pytest.mark.parametrize("text", ["", "short", "with spaces in between it", "ü" * 20, "x" * 513])
def test_no_secret(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        PlaneSecret(text)
    assert not text or text not in caught.value.message


def test_never_shown() -> None:
    assert SECRET.text not in repr(SECRET)
    assert SECRET.text not in str(SECRET)
    assert pickle.loads(pickle.dumps(SECRET)) == SECRET


def test_handed_over() -> None:
    drawn = PlaneSecret.draw()
    assert receive_secret(drawn.hand_over(), "--fd") == drawn


def test_a_descriptor_is_not_inherited_unasked() -> None:
    descriptor = SECRET.hand_over()
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_nothing_comes() -> None:
    readable, writable = os.pipe()
    moments = iter([0.0, 100.0, 200.0])
    with pytest.raises(ConfigError, match="--fd: expected a secret within 10 s, got none"):
        receive_secret(readable, "--fd", lambda: next(moments))
    os.close(writable)


@pytest.mark.parametrize("said", [b"", b"short", b"\xff" * 40, b"x" * 4000])
def test_something_else_comes(said: bytes) -> None:
    readable, writable = os.pipe()
    os.write(writable, said)
    os.close(writable)
    with pytest.raises(ConfigError, match="--fd: expected a descriptor with a secret, got"):
        receive_secret(readable, "--fd")


def test_no_descriptor() -> None:
    with pytest.raises(ConfigError, match="--fd: expected a descriptor that was inherited"):
        receive_secret(4000, "--fd")


def test_kept(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    first = kept_secret(path, "--file")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert kept_secret(path, "--file", lambda count: b"x" * count) == first
    assert os.listdir(tmp_path) == ["secret"]
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="--file: expected a file that others cannot read"):
        kept_secret(path, "--file")
    with pytest.raises(ConfigError, match="--file: expected a file that can be made"):
        kept_secret(tmp_path / "absent" / "secret", "--file")


def test_those_who_start_together_keep_one(tmp_path: Path) -> None:
    found: list[PlaneSecret] = []
    start = threading.Barrier(8)

    def keep() -> None:
        start.wait(10)
        found.append(kept_secret(tmp_path / "secret", "--file"))

    threads = [threading.Thread(target=keep) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 8
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    ("shown", "got"),
    [
        ((), "none"),
        ((("authorization", f"Bearer {'t' * 43}"),), "another one"),
        ((("authorization", SECRET.text),), "another one"),
        ((("authorization", f"Basic {SECRET.text}"),), "another one"),
        ((("authorization", f"Bearer {SECRET.text[:-1]}"),), "another one"),
        ((("authorization", f"Bearer {SECRET.text}x"),), "another one"),
        ((("authorization", "Bearer "),), "another one"),
        ((("authorization", b"Bearer"),), "none"),
        ((("authorization", "Bearer \udcff"),), "another one"),
    ],
)
def test_every_call_is_judged_at_its_headers(shown: tuple[tuple[str, str | bytes], ...], got: str) -> None:
    access = Access("w0", Rules({"colibri.v1.Expert": Scope.PLANE}, secret=SECRET))
    for method in ("/colibri.v1.Expert/Retire", "/colibri.v1.Faults/SetFaults", "/any.Other/Call"):
        refusal = access.at_arrival(method, shown)
        assert refusal is not None
        assert refusal.message == (
            "authorization: expected the secret of this worker's deployment (--worker-secret-file), "
            f"got {got}"
        )
        assert SECRET.text not in refusal.message
        assert access.at_arrival(method, (("authorization", f"Bearer {SECRET.text}"),)) is None
