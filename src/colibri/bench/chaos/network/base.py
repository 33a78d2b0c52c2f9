"""What a network offers, whoever carries its packets."""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, Self

from colibri.bench.chaos.network.layout import Layout
from colibri.bench.chaos.plan import LinkQuality


class Network(Protocol):
    """Leaving its context removes it. All methods raise ColibriError; any thread may call."""

    @property
    def layout(self) -> Layout: ...

    def set_up(self, worker: str, up: bool) -> None:
        """Raises or cuts a worker's link. Cut: nothing passes in either direction, and nobody is told."""
        ...

    def shape(self, worker: str, quality: LinkQuality) -> None:
        """Sets the quality of each direction of the worker's link."""
        ...

    def shape_hub(self, quality: LinkQuality) -> None:
        """Sets the quality of the coordinator's own link, which all workers share. A bridge shapes only what the
        coordinator sends.
        """
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
