"""The interface that every transport of the data plane implements."""

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

    A link that raised WorkerLost is dead for good: everything in flight on it is lost, and it is never read again.
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
        """Sends one frame made of `parts`. Frames leave in the order of the calls.

        The call returns once the frame is queued; the queue is bounded in bytes. Raises WorkerLost if the link is
        dead or closed, DeadlineExpired if the queue stayed full for `timeout_s` seconds.
        """
        ...

    def receive(self, timeout_s: float) -> memoryview:
        """Returns the next frame.

        Raises WorkerLost if the link is dead or closed, DeadlineExpired if nothing came within `timeout_s` seconds;
        the link then lives on.
        """
        ...

    def close(self) -> None:
        """Ends the stream and frees what it holds (threads, sockets). Wakes a receive that waits.

        May be called twice, and from any thread.
        """
        ...
