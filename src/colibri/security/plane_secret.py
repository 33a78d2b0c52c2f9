"""The secret that a deployment's workers demand of every call: draw it, hand it to a process, keep it, compare it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from colibri.deadline import Clock
from colibri.errors import ConfigError
from colibri.security.secret_file import stamp, write_new_file
from colibri.security.tokens import MAX_TOKEN, MIN_TOKEN, is_token, read_token

#: 256 bits: nobody guesses them.
_RANDOM_BYTES = 32
#: Whoever starts a worker has written the secret before the worker runs.
_HAND_OVER_S = 10.0

#: So many random bytes (os.urandom).
Entropy = Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class PlaneSecret:
    """The secret. Never printed, neither by repr nor in an error. Raises ConfigError for a text that is not a token.

    text: what callers show.
    """

    text: str = field(repr=False)

    def __post_init__(self) -> None:
        if not is_token(self.text):
            raise ConfigError(
                "secret", f"{MIN_TOKEN} to {MAX_TOKEN} characters of a token", f"{len(self.text)} others"
            )

    @classmethod
    def draw(cls, entropy: Entropy = os.urandom) -> PlaneSecret:
        return cls(base64.urlsafe_b64encode(entropy(_RANDOM_BYTES)).rstrip(b"=").decode())

    @classmethod
    def read(cls, path: Path, option: str) -> PlaneSecret:
        """Reads it from a file that nobody else can read. Raises ConfigError naming `option`."""
        return cls(read_token(path, option))

    def matches(self, shown: str) -> bool:
        """Compares in a time that reveals nothing: digests are compared, whatever was shown."""
        return hmac.compare_digest(_digest(self.text), _digest(shown))

    def hand_over(self) -> int:
        """Returns a descriptor from which one process reads the secret once. The caller closes its own copy.

        It is not inherited unless that is asked for.
        """
        readable, writable = os.pipe2(os.O_CLOEXEC)
        try:
            os.write(writable, self.text.encode())  # a pipe takes so little at once
        finally:
            os.close(writable)
        return readable


def kept_secret(path: Path, option: str, entropy: Entropy = os.urandom) -> PlaneSecret:
    """Returns the secret in a file. If there is no file, draws one and writes it for the owner only (mode 600).

    Processes that start together get the same. Raises ConfigError naming `option`.
    """
    if stamp(path) is None:
        try:
            write_new_file(path, f"{PlaneSecret.draw(entropy).text}\n".encode())
        except FileExistsError:
            pass  # another process was faster: its secret counts
        except OSError as error:
            raise ConfigError(option, "a file that can be made", f"{path} ({error.strerror})") from None
    return PlaneSecret.read(path, option)


def receive_secret(descriptor: int, option: str, clock: Clock = time.monotonic) -> PlaneSecret:
    """Reads what `hand_over` gave, and closes the descriptor. Raises ConfigError, naming `option`, if nothing comes."""
    until = clock() + _HAND_OVER_S
    text = b""
    try:
        while len(text) <= MAX_TOKEN:
            if not select.select([descriptor], [], [], max(0.0, until - clock()))[0]:
                raise ConfigError(option, f"a secret within {_HAND_OVER_S:g} s", "none")
            piece = os.read(descriptor, MAX_TOKEN + 1)
            if not piece:
                break
            text += piece
    except (OSError, ValueError):
        raise ConfigError(option, "a descriptor that was inherited, with a secret", descriptor) from None
    finally:
        _close(descriptor)
    try:
        return PlaneSecret(text.decode("ascii").strip())
    except (ConfigError, UnicodeDecodeError):
        raise ConfigError(option, "a descriptor with a secret", f"{len(text)} bytes that are none") from None


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="replace")).digest()
