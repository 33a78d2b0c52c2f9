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
    """A request from its submission to its end. order: of submission; sequences: its choices that have not ended;
    admitted_at: None while it waits; cancelled: set by any thread, read between steps.
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
        """Tokens of its longest choice that runs."""
        return max(sequence.generated for sequence in self.sequences)


class Admission:
    """`waiting`: by priority, then age; `running`: choices, by time of admission; `places`: of them."""

    def __init__(self, cache: KvCache, places: int) -> None:
        self._cache = cache
        self._places = places
        self._by_key: dict[tuple[str, str], ActiveRequest] = {}
        self.waiting: list[ActiveRequest] = []
        self.running: list[Sequence] = []

    def __len__(self) -> int:
        """Requests that wait or run."""
        return len(self._by_key)

    def __iter__(self) -> Iterator[ActiveRequest]:
        """All of them; they may be dropped on the way."""
        return iter(list(self._by_key.values()))

    def get(self, key: tuple[str, str]) -> ActiveRequest | None:
        """key: GenerationRequest.key."""
        return self._by_key.get(key)

    def add(self, active: ActiveRequest) -> None:
        self._by_key[active.request.key] = active
        bisect.insort(self.waiting, active, key=lambda each: (-each.request.priority, each.order))

    def admit(self, now: float) -> None:
        """From the head of the queue, in order: a large request is never overtaken for ever by small ones."""
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
        """The other choices of a prompt that `leader` has just computed, ready to choose from the same logits: the
        full pages are theirs already, the last one each gets a copy of.
        """
        followers, leader.followers = leader.followers, ()
        full, rest = divmod(leader.prefill, self._cache.shape.page)
        for follower in followers:
            if rest and leader.pages is not None and follower.pages is not None:
                self._cache.copy_page(int(leader.pages[full]), int(follower.pages[full]))
        return followers

    def end(self, active: ActiveRequest, sequence: Sequence) -> bool:
        """Takes a choice out and gives its pages back; True when it was its request's last."""
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
