"""The file of tokens: what a line may be, who is let in, and when it is read again."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from pathlib import Path

import pytest

from colibri.errors import ConfigError, Unauthenticated
from colibri.security import tokens as tokens_module
from colibri.security.roles import Scope
from colibri.security.tokens import (
    LOOK_S,
    MAX_TOKENS,
    TokenFile,
    digest_of,
    iso,
    parse_time,
    parse_tokens,
    read_token,
)

SECRET = "clb_0123456789abcdefghij"
OTHER = "clb_another-token-0123456789"


def file(folder: Path, text: str) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(0o600)
    return path


class Time:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def test_lines() -> None:
    text = f"""
    # comment
    alice client {SECRET}            # plain
    ops   operator {digest_of(OTHER)} 2027-01-31
    ci    client sha256:{"0" * 64} 2027-01-31T12:00:00+02:00
    """
    alice, ops, ci = parse_tokens(text, Path("t"), "--tokens")
    assert (alice.name, alice.scope, alice.expires) == ("alice", Scope.CLIENT, None)
    assert alice.digest == hashlib.sha256(SECRET.encode()).digest()
    assert (ops.scopes, iso(ops.expires or 0)) == (
        frozenset({Scope.CLIENT, Scope.OPERATOR}),
        "2027-01-31T00:00:00Z",
    )
    assert iso(ci.expires or 0) == "2027-01-31T10:00:00Z"
    assert alice.scopes == frozenset({Scope.CLIENT})


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("alice client", "t:1: expected NAME SCOPE TOKEN [EXPIRES], got 2 words"),
        (f"alice client {SECRET} 2027-01-01 more", "t:1: expected NAME SCOPE TOKEN [EXPIRES], got 5 words"),
        (
            f"al/ice client {SECRET}",
            "t:1: expected a name of at most 64 letters, digits and . _ @ -, got another first word",
        ),
        (
            f"alice admin {SECRET}",
            "t:1: expected a scope of client or operator as second word, got another one",
        ),
        (
            "alice client short",
            "t:1: expected a token of 16 to 512 characters (letters, digits, . _ ~ + / -) as third word, got 5"
            " characters",
        ),
        ("alice client sha256:12", "t:1: expected 64 hexadecimal digits behind sha256:, got something else"),
        (
            f"alice client {SECRET} tomorrow",
            "t:1: expected a date or time as 2027-01-31 or 2027-01-31T12:00:00Z, got tomorrow",
        ),
        (f"alice client {SECRET}\nalice client {OTHER}", "t:2: expected each name once, got alice again"),
        (
            f"alice client {SECRET}\nbob client {digest_of(SECRET)}",
            "t:2: expected each token once, got that of alice again",
        ),
        ("# nothing", "--tokens: expected at least one token, got none in t"),
        (
            "\n".join(f"n{i} client {digest_of(str(i))}" for i in range(MAX_TOKENS + 1)),
            f"--tokens: expected at most {MAX_TOKENS} tokens, got {MAX_TOKENS + 1} in t",
        ),
    ],
)
def test_bad_lines_are_named_and_never_quoted(line: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_tokens(line, Path("t"), "--tokens")
    assert caught.value.message == text
    assert SECRET not in caught.value.message


def test_who_is_let_in(tmp_path: Path) -> None:
    now = Time()
    expires = iso(now.now + 100)
    found = TokenFile(file(tmp_path, f"alice client {SECRET} {expires}\nops operator {OTHER}"), now=now)
    assert found.check(f"Bearer {SECRET}").name == "alice"
    assert found.check(f"BEARER   {OTHER} ").name == "ops"
    now.now += 100
    with pytest.raises(Unauthenticated, match=f"alice's, which expired at {expires}"):
        found.check(f"Bearer {SECRET}")
    for shown in (
        None,
        "",
        SECRET,
        f"Basic {SECRET}",
        "Bearer",
        f"Bearer {SECRET} {SECRET}",
        "Bearer \x00" + SECRET,
    ):
        with pytest.raises(Unauthenticated):
            found.check(shown)
    with pytest.raises(Unauthenticated, match="got one that it does not know"):
        found.check(f"Bearer {SECRET}x")


def test_every_comparison_is_made_in_constant_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever entry is right, or none: as many comparisons, of digests, of one length."""
    lines = "\n".join(f"n{number} client {SECRET}{number:02}" for number in range(10))
    found = TokenFile(file(tmp_path, lines))
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return hmac.compare_digest(one, other)

    class Watched:
        compare_digest = staticmethod(compare)

    monkeypatch.setattr(tokens_module, "hmac", Watched)
    for shown in (f"{SECRET}00", f"{SECRET}09", f"{SECRET}xx", "y" * 400):
        compared.clear()
        with contextlib.suppress(Unauthenticated):
            found.check(f"Bearer {shown}")
        assert compared == [(32, 32)] * 10


def test_it_is_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = Time()
    path = file(tmp_path, f"alice client {SECRET}")
    found = TokenFile(path, clock=clock)

    def knows(secret: str) -> bool:
        try:
            found.check(f"Bearer {secret}")
        except Unauthenticated:
            return False
        return True

    file(tmp_path, f"bob client {OTHER}")
    assert knows(SECRET)  # not looked at yet
    clock.now += LOOK_S
    assert knows(OTHER)
    assert not knows(SECRET)
    file(tmp_path, "nonsense")
    clock.now += LOOK_S
    assert knows(OTHER)
    clock.now += LOOK_S
    assert knows(OTHER)
    assert caplog.text.count("the tokens stay as they were") == 1
    path.unlink()
    clock.now += LOOK_S
    assert knows(OTHER)
    file(tmp_path, f"alice client {SECRET}").chmod(0o644)
    clock.now += LOOK_S
    assert not knows(SECRET)
    assert "others cannot read or write" in caplog.text


def test_a_callers_file_holds_one(tmp_path: Path) -> None:
    assert read_token(file(tmp_path, f"  {SECRET}\n"), "--token-file") == SECRET
    for text in ("", "short", f"{SECRET} {OTHER}", "ä" * 20):
        with pytest.raises(
            ConfigError, match="--token-file: expected a file with one token of 16 to 512 characters"
        ):
            read_token(file(tmp_path, text), "--token-file")


def test_times() -> None:
    assert parse_time("1970-01-02", "f") == 86400
    assert parse_time("1970-01-01T00:00:01Z", "f") == 1
    with pytest.raises(ConfigError, match="f: expected a date or time"):
        parse_time("01.02.2027", "f")
