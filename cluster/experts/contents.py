"""Contents: one content for each expert, over all workers, their restarts and their hosts.

A worker hashes what it loads and says so. Each host compares its files with its own notes of an earlier load
(colibri.models.digest_book); what hosts and lives of one deployment say is compared here, with what the coordinator's
host has noted and, where that is nothing, with the worker that said it first.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from colibri.cluster.experts.holders import ExpertId
from colibri.errors import NumericsMismatch


class Contents:
    """Remembers each expert's digest and who told it first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[ExpertId, tuple[bytes, str]] = {}

    def believe(self, said: Mapping[ExpertId, bytes], by: str) -> None:
        """Before any worker says anything. by: as errors name it, as 'as pack.json says'."""
        with self._lock:
            self._first.update((expert, (digest, by)) for expert, digest in said.items())

    def known(self) -> dict[ExpertId, bytes]:
        """Returns the digest of each expert that was told so far."""
        with self._lock:
            return {expert: digest for expert, (digest, _) in self._first.items()}

    def hear(self, worker: str, said: Mapping[ExpertId, bytes]) -> None:
        """Compares the digests of a worker with those told before; a worker that knows no digests tells none.

        Raises NumericsMismatch for the first expert, ascending, that was another before: that worker must not serve.
        """
        for expert, digest in sorted(said.items()):
            if not digest:
                continue
            with self._lock:
                believed, first = self._first.setdefault(expert, (digest, f"as worker {worker} loaded it"))
            if believed != digest:
                layer, number = expert
                raise NumericsMismatch(
                    f"worker {worker}: expert {number} of layer {layer}: content: expected {believed.hex()}, {first},"
                    f" got {digest.hex()}: a copy of the model is damaged or another, which `colibri verify MODEL`"
                    " tells on each host",
                    peer=worker,
                )
