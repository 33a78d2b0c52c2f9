"""The interface behind which every transport of the data plane stands."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Protocol

#: Bound of a send that the peer does not accept, seconds.
SEND_TIMEOUT_S = 30.0


class LinkKind(enum.Enum):
    """Which link a router opens. AUTO: shared memory with a worker of the same host, else gRPC."""

    AUTO = "auto"
    GRPC = "grpc"
    SHARED_MEMORY = "shared-memory"


class Link(Protocol):
    """One stream of frames to one worker. Any thread may send; one thread at a time may receive.

    A link that raised WorkerLost is dead for good: everything in flight on it is lost and it is never read
    again.
    """

    @property
    def kind(self) -> LinkKind:
        """What carries the frames; never AUTO."""
        ...

    @property
    def peer(self) -> str:
        """Name of the worker, used in every error."""
        ...

    @property
    def lost(self) -> str | None:
        """Why the link is dead or closed; None while it lives. Known without sending or receiving."""
        ...

    def send(self, parts: Sequence[bytes | memoryview], timeout_s: float = SEND_TIMEOUT_S) -> None:
        """Sends one frame made of `parts`. Frames leave in the order of the calls; the call returns once the
        frame is queued (the queue is bounded in bytes).

        Raises WorkerLost when the link is dead or closed, DeadlineExpired when the queue stayed full for
        `timeout_s`.
        """
        ...

    def receive(self, timeout_s: float) -> memoryview:
        """The next frame. Raises WorkerLost when the link is dead or closed, DeadlineExpired when nothing
        came within `timeout_s` seconds (the link lives on)."""
        ...

    def close(self) -> None:
        """Ends the stream and what it holds (threads, sockets). May be called twice, and from any thread: it
        wakes a receive that waits."""
        ...
