"""What one request brought: its times, tokens and receipts, and how it ended.

Times are seconds on the monotonic clock of this process, absolute, so that they line up with whatever else
it noted. A token's time is that of the message that brought it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from colibri.bench.load.workload import LoadRequest
from colibri.deadline import Clock
from colibri.errors import ColibriError

#: Kinds of Failure that the harness itself decides on; all others name an error of the target.
STOPPED = "stopped"
BOUND_EXCEEDED = "in-flight bound"


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a request brought no whole answer. kind: class of the error (or "HTTP 503"), STOPPED (the run
    ended first) or BOUND_EXCEEDED (never sent)."""

    kind: str
    message: str
    retryable: bool = False
    retry_after_s: float | None = None

    @classmethod
    def of(cls, error: ColibriError) -> Failure:
        if isinstance(error, TargetFailure):
            return error.failure
        return cls(type(error).__name__, error.message, error.retryable, error.retry_after_s)


class TargetFailure(ColibriError):
    """A target's own kind of error, for which there is no class."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message, retry_after_s=failure.retry_after_s)
        self.failure = failure
        self.retryable = failure.retryable


@dataclass(frozen=True, slots=True)
class Gap:
    """Silence between two successive messages with tokens. start: absolute time; token: index of the token
    that ended it."""

    start: float
    seconds: float
    token: int


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request, over. sent: None when it never left; accepted: the server's word that it queued it.

    token_times: one per token that arrived (HTTP targets: one per chunk, ids and receipts stay empty).
    prompt_tokens, output_tokens: as the server counts them, else as sent and seen. resumes: how often the
    answer was continued after an error. failure None: the answer is whole.
    """

    index: int
    request: LoadRequest
    scheduled: float
    sent: float | None
    accepted: float | None
    token_times: tuple[float, ...]
    ids: tuple[int, ...]
    receipts: tuple[int, ...]
    ended: float
    prompt_tokens: int
    output_tokens: int
    finish_reason: str
    engine_numerics_id: str
    resumes: int
    failure: Failure | None

    @property
    def completed(self) -> bool:
        return self.failure is None

    @property
    def ttft(self) -> float | None:
        """Time to first token, from the scheduled time."""
        return self.token_times[0] - self.scheduled if self.token_times else None

    @property
    def e2el(self) -> float:
        """From the scheduled time to the end, in seconds."""
        return self.ended - self.scheduled

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None below two tokens."""
        if self.output_tokens < 2 or not self.token_times:
            return None
        return (self.ended - self.token_times[0]) / (self.output_tokens - 1)

    def gaps(self) -> Iterator[Gap]:
        """Between messages that brought tokens: ITL of each."""
        before = None
        for token, at in enumerate(self.token_times):
            if before is not None and at != before:
                yield Gap(before, at - before, token)
            before = at

    def largest_gap(self) -> Gap | None:
        """None below two messages."""
        return max(self.gaps(), key=lambda gap: gap.seconds, default=None)


@dataclass(slots=True)
class Recording:
    """A request under way; used by one event loop. Targets tell it what happens as it happens."""

    index: int
    request: LoadRequest
    scheduled: float
    clock: Clock
    sent: float | None = None
    accepted: float | None = None
    token_times: list[float] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    receipts: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    finish_reason: str = ""
    engine_numerics_id: str = ""
    resumes: int = 0

    def note_sent(self) -> None:
        """The request was handed to the transport. Only the first time counts."""
        if self.sent is None:
            self.sent = self.clock()

    def note_accepted(self, prompt_tokens: int) -> None:
        self.accepted = self.accepted or self.clock()
        self.prompt_tokens = prompt_tokens

    def note_tokens(self, ids: Sequence[int], receipts: Sequence[int]) -> None:
        """A message of tokens is here."""
        self.token_times.extend([self.clock()] * len(ids))
        self.ids.extend(ids)
        self.receipts.extend(receipts)

    def note_chunk(self) -> None:
        """A message of text is here, in how many tokens nobody says."""
        self.token_times.append(self.clock())

    def freeze(self, failure: Failure | None) -> RequestRecord:
        """The request is over, now."""
        prompt = len(self.request.prompt_ids) if self.prompt_tokens is None else self.prompt_tokens
        output = len(self.token_times) if self.output_tokens is None else self.output_tokens
        return RequestRecord(
            index=self.index,
            request=self.request,
            scheduled=self.scheduled,
            sent=self.sent,
            accepted=self.accepted,
            token_times=tuple(self.token_times),
            ids=tuple(self.ids),
            receipts=tuple(self.receipts),
            ended=self.clock(),
            prompt_tokens=prompt,
            output_tokens=output,
            finish_reason=self.finish_reason,
            engine_numerics_id=self.engine_numerics_id,
            resumes=self.resumes,
            failure=failure,
        )
