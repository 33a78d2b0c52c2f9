"""The bearer tokens that a server accepts: a file, read again when it changes.

A line is `NAME SCOPE TOKEN [EXPIRES]`. TOKEN is the token itself, or `sha256:` and its digest in hexadecimal;
`colibri token new` writes the digest, so that the file is worthless to a thief. EXPIRES is an ISO 8601 date or
time, UTC unless it says otherwise; a date means its beginning. `#` begins a comment.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from colibri.deadline import Clock
from colibri.errors import ConfigError, Unauthenticated
from colibri.security.roles import Scope
from colibri.security.secret_file import Stamp, read_file, stamp

_log = logging.getLogger(__name__)

#: What nobody can guess: 16 characters of base64 hold 96 bits.
MIN_TOKEN = 16
MAX_TOKEN = 512
#: Every call compares with all of them.
MAX_TOKENS = 1000
#: How often the file is looked at, seconds.
LOOK_S = 1.0
_DIGEST = "sha256:"
_NAME = re.compile(r"[\w.@-]{1,64}", re.ASCII)
#: RFC 6750, b64token.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_SCOPES = {scope.value: scope for scope in (Scope.CLIENT, Scope.OPERATOR)}


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the file. digest: SHA-256; expires: seconds of the epoch, None: never."""

    name: str
    scope: Scope
    digest: bytes
    expires: float | None = None

    @property
    def scopes(self) -> frozenset[Scope]:
        """What its holder may do. An operator may ask for answers too."""
        return frozenset({self.scope, Scope.CLIENT})


class TokenFile:
    """The tokens that a file holds now. A change that cannot be read is reported once, and the tokens stay.
    Thread-safe.

    clock: monotonic seconds.
    now: seconds of the epoch.
    """

    def __init__(
        self,
        path: Path,
        field: str = "--tokens",
        clock: Clock = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError naming `field`, or file and line."""
        self._path = path
        self._field = field
        self._clock = clock
        self._now = now
        self._lock = threading.Lock()
        self._stamp = stamp(path)
        self._tokens = read_tokens(path, field)
        self._looked = clock()

    def check(self, shown: str | None) -> Token:
        """Returns the token that was shown. Takes as long for any wrong token as for a right one. Raises
        Unauthenticated.

        shown: the value of `authorization`; None: there is none.
        """
        tokens = self._current()
        if shown is None:
            raise Unauthenticated("authorization: expected a bearer token of this server, got none")
        kind, _, secret = shown.partition(" ")
        secret = secret.strip()
        if kind.lower() != "bearer" or len(secret) > MAX_TOKEN or not _TOKEN.fullmatch(secret):
            raise Unauthenticated("authorization: expected Bearer and a token, got something else")
        digest = hashlib.sha256(secret.encode()).digest()
        found: Token | None = None
        for token in tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        if found is None:
            raise Unauthenticated(
                "authorization: expected a bearer token of this server, got one that it does not know"
            )
        if found.expires is not None and self._now() >= found.expires:
            raise Unauthenticated(
                f"authorization: expected a token that is still valid, got {found.name}'s, which expired at "
                f"{iso(found.expires)}"
            )
        return found

    def _current(self) -> tuple[Token, ...]:
        with self._lock:
            now = self._clock()
            if now - self._looked >= LOOK_S:
                self._looked = now
                self._reload(stamp(self._path))
            return self._tokens

    def _reload(self, seen: Stamp | None) -> None:
        if seen == self._stamp:
            return
        self._stamp = seen
        try:
            self._tokens = read_tokens(self._path, self._field)
        except ConfigError as error:
            _log.error("%s; the tokens stay as they were", error.message)
        else:
            _log.info("%s: %d tokens, read again", self._path, len(self._tokens))


def read_tokens(path: Path, field: str) -> tuple[Token, ...]:
    """Reads a file of tokens. Raises ConfigError, naming file and line; never quotes a token."""
    try:
        text = read_file(path, field, secret=True).decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(field, "text in UTF-8", path) from None
    return parse_tokens(text, path, field)


def parse_tokens(text: str, path: Path, field: str) -> tuple[Token, ...]:
    """Does as read_tokens, from a file's text."""
    found: dict[str, Token] = {}
    digests: dict[bytes, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        token = _parse(words, f"{path}:{number}")
        if token.name in found:
            raise ConfigError(f"{path}:{number}", "each name once", f"{token.name} again")
        if token.digest in digests:
            raise ConfigError(f"{path}:{number}", "each token once", f"that of {digests[token.digest]} again")
        found[token.name] = token
        digests[token.digest] = token.name
    if not found:
        raise ConfigError(field, "at least one token", f"none in {path}")
    if len(found) > MAX_TOKENS:
        raise ConfigError(field, f"at most {MAX_TOKENS} tokens", f"{len(found)} in {path}")
    return tuple(found.values())


def read_token(path: Path, field: str) -> str:
    """Reads the one token of a client's file. Raises ConfigError; never quotes it."""
    try:
        words = read_file(path, field, secret=True).decode("ascii").split()
    except UnicodeDecodeError:
        words = []
    if len(words) != 1 or not is_token(words[0]):
        raise ConfigError(field, f"a file with one token of {MIN_TOKEN} to {MAX_TOKEN} characters", path)
    return words[0]


def is_token(text: str) -> bool:
    return MIN_TOKEN <= len(text) <= MAX_TOKEN and _TOKEN.fullmatch(text) is not None


def digest_of(token: str) -> str:
    """Returns the digest as it stands in a file."""
    return _DIGEST + hashlib.sha256(token.encode()).hexdigest()


def iso(seconds: float) -> str:
    """Writes seconds of the epoch as UTC: 2027-01-31T00:00:00Z."""
    when = datetime.datetime.fromtimestamp(seconds, datetime.UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str, field: str) -> float:
    """Returns an ISO 8601 date or time, UTC unless it says otherwise, as seconds of the epoch. Raises ConfigError."""
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(field, "a date or time as 2027-01-31 or 2027-01-31T12:00:00Z", text) from None
    return (when if when.tzinfo else when.replace(tzinfo=datetime.UTC)).timestamp()


def _parse(words: list[str], where: str) -> Token:
    if not 3 <= len(words) <= 4:
        raise ConfigError(where, "NAME SCOPE TOKEN [EXPIRES]", f"{len(words)} words")
    name, scope, secret = words[:3]
    if not _NAME.fullmatch(name):
        raise ConfigError(where, "a name of at most 64 letters, digits and . _ @ -", "another first word")
    if scope not in _SCOPES:
        raise ConfigError(where, f"a scope of {' or '.join(_SCOPES)} as second word", "another one")
    if secret.startswith(_DIGEST):
        if not re.fullmatch(r"[0-9a-f]{64}", secret.removeprefix(_DIGEST)):
            raise ConfigError(where, "64 hexadecimal digits behind sha256:", "something else")
        digest = bytes.fromhex(secret.removeprefix(_DIGEST))
    elif is_token(secret):
        digest = hashlib.sha256(secret.encode()).digest()
    else:
        raise ConfigError(
            where,
            f"a token of {MIN_TOKEN} to {MAX_TOKEN} characters (letters, digits, . _ ~ + / -) as third word",
            f"{len(secret)} characters",
        )
    expires = parse_time(words[3], where) if len(words) == 4 else None
    return Token(name, _SCOPES[scope], digest, expires)
