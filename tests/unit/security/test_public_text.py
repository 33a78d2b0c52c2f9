"""What strangers may read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.security.public_text import hide, public_text

PEM = "-----BEGIN PRIVATE KEY-----\nMIGHAgEA\n-----END PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/srv/models/m/config.json: hidden_size: expected 1", "config.json: hidden_size: expected 1"),
        ("unix:/tmp/colibri-run-a1/w0.3.sock: Connection refused", "unix:w0.3.sock: Connection refused"),
        ("last error: UNKNOWN: unix:///run/x/s.sock: no", "last error: UNKNOWN: unix:s.sock: no"),
        ("got '/home/jane doe/my models/m.safetensors'", "got 'm.safetensors'"),
        ("opened /etc, then /proc/12/fd/7", "opened <path>, then <path>"),
        ("(/var/lib/colibri)", "(<path>)"),
        ("PosixPath('/root/.ssh/id_ed25519')", "PosixPath('<path>')"),
        ("path=/a/b/ end", "path=<path> end"),
        ("file:///srv/x.json", "file:x.json"),
        ("read/write, 3/4, and/or", "read/write, 3/4, and/or"),
        ("see https://grpc.io/docs/guides", "see https://grpc.io/docs/guides"),
        ("/colibri.v1.Router/Forward is not there", "/colibri.v1.Router/Forward is not there"),
        ("authorization: Bearer abcdefghijklmnop0123 was", "authorization: Bearer <token> was"),
        ("a bearer token of this server", "a bearer token of this server"),
        ("clb_abcdef-ghij", "<token>"),
        (f"key {PEM} end", "key <key> end"),
    ],
)
def test_texts(text: str, told: str) -> None:
    assert public_text(text) == told


@given(st.lists(st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True), min_size=2, max_size=6))
def test_no_folder_remains(parts: list[str]) -> None:
    told = public_text(f"opening /{'/'.join(parts)}/weights.bin failed; '/{'/'.join(parts)}' too")
    assert told == "opening weights.bin failed; '<path>' too"


@given(st.text(max_size=200))
def test_it_ends_and_is_stable(text: str) -> None:
    once = public_text(text)
    assert public_text(once) == once


def test_known_folders_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "my models, (new)"
    (folder / "one two").mkdir(parents=True)
    (tmp_path / "link").symlink_to(folder)
    hide(tmp_path / "link")
    for form in (folder, tmp_path / "link"):
        assert public_text(f"{form}/one two/config.json: missing") == "one two/config.json: missing"
        assert public_text(f"no {form} here") == "no <path> here"


def test_known_urls() -> None:
    hide("s3://bucket of ours/packs/m/")
    assert public_text("s3://bucket of ours/packs/m/w1.safetensors: missing") == "w1.safetensors: missing"
