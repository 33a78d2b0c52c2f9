"""Check that all copies of an expert have the same content, over all workers, their restarts and their hosts.

A worker hashes what it loads and reports it. Each host compares its files with its own notes of an earlier load
(colibri.models.digest_book). Here the reports of one deployment's hosts and incarnations are compared with the
notes of the coordinator's host, or, if it has none, with the first worker's report.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from colibri.cluster.experts.holders import ExpertId
from colibri.errors import NumericsMismatch


class Contents:
    """Remembers each expert's digest and who reported it first. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._first: dict[ExpertId, tuple[bytes, str]] = {}

    def believe(self, said: Mapping[ExpertId, bytes], by: str) -> None:
        """Takes digests as given, before any worker reports. by: their source in errors, such as 'as pack.json
        says'.
        """
        with self._lock:
            self._first.update((expert, (digest, by)) for expert, digest in said.items())

    def known(self) -> dict[ExpertId, bytes]:
        """Returns the digest of each expert reported so far."""
        with self._lock:
            return {expert: digest for expert, (digest, _) in self._first.items()}

    def hear(self, worker: str, said: Mapping[ExpertId, bytes]) -> None:
        """Compares a worker's digests with those reported before. A worker that knows no digests reports none.

        Raises NumericsMismatch for the first expert, ascending, that differs: that worker must not serve.
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
