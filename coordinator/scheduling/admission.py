"""Admit requests: which ones wait, which run, and the cache pages they hold. The engine's lock guards all of it."""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.kv_cache import KvCache
from colibri.coordinator.request import GenerationRequest
from colibri.coordinator.sequence import Sequence


class ActiveRequest:
    """A request from its submission to its end.

    order: of submission.
    sequences: its choices that have not ended.
    admitted_at: None while it waits.
    cancelled: any thread may set it; read between steps.
    """

    __slots__ = ("admitted_at", "cancelled", "handle", "order", "request", "sequences")

    def __init__(self, handle: RequestHandle, sequences: SequenceOf[Sequence], order: int) -> None:
        self.request: GenerationRequest = handle.request
        self.handle = handle
        self.sequences = list(sequences)
        self.order = order
        self.admitted_at: float | None = None
        self.cancelled = False

    @property
    def generated(self) -> int:
        """Tokens of its longest running choice."""
        return max(sequence.generated for sequence in self.sequences)


class Admission:
    """The waiting and the running requests.

    waiting: by priority, then age.
    running: choices, by time of admission.
    places: most choices that may run.
    """

    def __init__(self, cache: KvCache, places: int) -> None:
        self._cache = cache
        self._places = places
        self._by_key: dict[tuple[str, str], ActiveRequest] = {}
        self.waiting: list[ActiveRequest] = []
        self.running: list[Sequence] = []

    def __len__(self) -> int:
        """Counts requests that wait or run."""
        return len(self._by_key)

    def __iter__(self) -> Iterator[ActiveRequest]:
        """Yields all requests; they may be dropped meanwhile."""
        return iter(list(self._by_key.values()))

    def get(self, key: tuple[str, str]) -> ActiveRequest | None:
        """Returns the request with a GenerationRequest.key, or None."""
        return self._by_key.get(key)

    def add(self, active: ActiveRequest) -> None:
        self._by_key[active.request.key] = active
        bisect.insort(self.waiting, active, key=lambda each: (-each.request.priority, each.order))

    def admit(self, now: float) -> None:
        """Admits requests from the head of the queue, in order, so that small requests never overtake a large one for
        ever.
        """
        while self.waiting:
            active = self.waiting[0]
            request = active.request
            if len(self.running) + request.n > self._places:
                return
            pages = self._cache.reserve(request.kv_tokens, len(request.prompt_ids), request.n)
            if pages is None:
                return
            for sequence, own in zip(active.sequences, pages, strict=True):
                sequence.pages = own
            active.sequences[0].followers = tuple(active.sequences[1:])
            active.admitted_at = now
            self.running += active.sequences
            del self.waiting[0]

    def follow(self, leader: Sequence) -> tuple[Sequence, ...]:
        """Returns the other choices of a prompt that `leader` has just computed, ready to choose from the same logits.

        They share the prompt's full pages already; each gets a copy of the last one.
        """
        followers, leader.followers = leader.followers, ()
        full, rest = divmod(leader.prefill, self._cache.shape.page)
        for follower in followers:
            if rest and leader.pages is not None and follower.pages is not None:
                self._cache.copy_page(int(leader.pages[full]), int(follower.pages[full]))
        return followers

    def end(self, active: ActiveRequest, sequence: Sequence) -> bool:
        """Removes a choice and gives its pages back. Returns whether it was its request's last."""
        active.sequences.remove(sequence)
        if sequence.pages is not None:
            self.running.remove(sequence)
            self._cache.release(sequence.pages)
            sequence.pages = None
        if active.sequences:
            return False
        del self._by_key[active.request.key]
        if active.admitted_at is None:
            self.waiting.remove(active)
        return True
