"""`ip` and `tc`, each call bounded, each failure told with what the command said."""

from __future__ import annotations

import subprocess

from colibri.errors import ColibriError, ConfigError

_TIMEOUT_S = 10.0


def run(*command: str) -> str:
    """Its output. Raises ColibriError naming the command when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        raise ConfigError("network", f"the program {command[0]} (package iproute2)", "none") from None
    except subprocess.TimeoutExpired:
        raise ColibriError(f"`{' '.join(command)}` did not end within {_TIMEOUT_S:g} s") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise ColibriError(f"`{' '.join(command)}`: {said}")
    return done.stdout


def works(*command: str) -> bool:
    try:
        run(*command)
    except ColibriError:
        return False
    return True
