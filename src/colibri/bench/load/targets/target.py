"""The interface of a target."""

from __future__ import annotations

from typing import Protocol

from colibri.bench.load.record import Recording


class Target(Protocol):
    """All calls come from one event loop."""

    async def open(self, timeout_s: float) -> None:
        """Connect. Raises ColibriError naming the target when it does not answer in time."""
        ...

    async def send(self, recording: Recording, timeout_s: float) -> None:
        """Ask `recording.request` and tell the recording what comes back, until the answer is whole.

        Raises ColibriError when it fails or `timeout_s` seconds are over. Cancellable.
        """
        ...

    async def close(self) -> None: ...
