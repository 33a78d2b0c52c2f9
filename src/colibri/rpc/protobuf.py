"""Check which implementation of protobuf reads what strangers send."""

from __future__ import annotations

from google.protobuf.internal import api_implementation

from colibri.errors import ConfigError

VARIABLE = "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"
#: Written in C, bounded in depth (CVE-2025-4565), and quick enough that reading a message is no attack.
_TAKEN = ("upb", "cpp")


def check_implementation() -> None:
    """Raises ConfigError if this process uses the implementation in Python, as its environment may demand."""
    found = api_implementation.Type()
    if found not in _TAKEN:
        raise ConfigError(VARIABLE, " or ".join(_TAKEN), f"{found}, for servers: unset it")
