"""Follow one answer over any number of calls: what to ask next, and which part of what comes is new.

No IO here. After a call was lost in the middle, the next one resumes from the tokens that came. The server computes
the tokens of the last message again, and their ids, receipts and text must be the same. Otherwise the server has
changed, and the answer ends with NumericsMismatch instead of going on with other bits. This overlap also finds the
end of an answer whose last token came but whose Finished did not.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from colibri.errors import Cancelled, ColibriError, DuplicateRequest, FrameError, NumericsMismatch
from colibri.generation import Accepted, Event, Finished, Prompt, Tokens
from colibri.v1 import generation_pb2 as pb


@dataclass(slots=True)
class _Choice:
    """One choice of the answer.

    settled_*: what the next call resumes from.
    tail_*: what came with the last ids; the next call computes it again.
    owed_*: how much of the tail the running call still has to repeat.
    """

    settled_ids: list[int]
    settled_receipt: int
    tail_ids: tuple[int, ...] = ()
    tail_receipts: tuple[int, ...] = ()
    tail_text: str = ""
    owed_ids: tuple[int, ...] = ()
    owed_receipts: tuple[int, ...] = ()
    owed_text: str = ""
    finished: bool = False

    def owe(self) -> None:
        """Notes that a call begins, which has to repeat the tail."""
        self.owed_ids, self.owed_receipts, self.owed_text = self.tail_ids, self.tail_receipts, self.tail_text

    def keep(self, news: Tokens) -> None:
        if news.ids:
            self.settled_ids += self.tail_ids
            if self.tail_receipts:
                self.settled_receipt = self.tail_receipts[-1]
            self.tail_ids, self.tail_receipts, self.tail_text = news.ids, news.receipts, news.text
        else:
            self.tail_text += news.text


@dataclass(slots=True)
class Resumption:
    """The state of one answer. request: as it was first asked; target: names the server in errors."""

    request: pb.GenerateRequest
    target: str
    _choices: list[_Choice] = field(init=False)
    _asked: list[int] = field(init=False, default_factory=list)
    _calls: int = field(init=False, default=0)
    _accepted: Accepted | None = field(init=False, default=None)
    _prompt_seen: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        resume = self.request.resume
        first = _Choice(list(resume.generated_ids), resume.receipt)
        # The number of choices comes from outside and the server judges it: made as they are met.
        self._choices = [first]

    @property
    def done(self) -> bool:
        """Whether every choice has its Finished."""
        return len(self._choices) >= self._n and all(choice.finished for choice in self._choices)

    @property
    def call_complete(self) -> bool:
        """Whether every choice that the running call asked for has its Finished."""
        return all(at < len(self._choices) and self._choices[at].finished for at in self._asked)

    @property
    def request_id(self) -> str:
        return self.request.request_id if self._accepted is None else self._accepted.request_id

    def next_request(self) -> pb.GenerateRequest:
        """Returns the next request: all choices while none has tokens, later the first unfinished one."""
        request = pb.GenerateRequest()
        request.CopyFrom(self.request)
        self._calls += 1
        if self._accepted is not None:
            request.request_id = self._accepted.request_id
            request.sampling.seed = self._accepted.seed
        request.echo = request.echo and not self._prompt_seen
        self._asked = list(range(self._n))
        if any(choice.tail_ids or choice.finished for choice in self._choices):
            self._resume(request)
        return request

    def take(self, event: Event) -> Event | None:
        """Returns the new part of an event, or None.

        Raises NumericsMismatch if a repeated part differs, FrameError for an impossible event.
        """
        if isinstance(event, Accepted):
            return self._take_accepted(event)
        if isinstance(event, Prompt):
            repeated, self._prompt_seen = self._prompt_seen, True
            return None if repeated else event
        choice = self._choice_of(event)
        if isinstance(event, Finished):
            if choice.owed_ids or choice.owed_text:
                raise self._differs(event.choice, "the answer ends earlier than before")
            choice.finished = True
            return event
        news = self._take_tokens(choice, event)
        if not news.ids and not news.text:
            return None
        choice.keep(news)
        return news

    def may_ask_again(self, error: ColibriError) -> bool:
        """Whether the failure of a call advises a retry.

        If this client did not cancel a cancelled call, the server that ends did. A request id that is still taken
        belongs to the lost call.
        """
        return error.retryable or type(error) is Cancelled or self.is_ghost(error)

    def is_ghost(self, error: ColibriError) -> bool:
        """Whether a lost call still runs at the server, which has not noticed. It must be aborted."""
        return isinstance(error, DuplicateRequest) and self._calls > 1

    @property
    def _n(self) -> int:
        return max(self.request.n, 1)

    def _resume(self, request: pb.GenerateRequest) -> None:
        at = next(i for i in range(self._n) if i >= len(self._choices) or not self._choices[i].finished)
        while len(self._choices) <= at:
            self._choices.append(_Choice([], 0))
        choice = self._choices[at]
        choice.owe()
        self._asked = [at]
        request.n = 0
        request.resume.Clear()
        number = self.request.resume.choice if self._n == 1 else at
        if choice.settled_ids or number:
            request.resume.generated_ids.extend(choice.settled_ids)
            request.resume.receipt = choice.settled_receipt
            request.resume.choice = number

    def _take_accepted(self, event: Accepted) -> Accepted | None:
        first = self._accepted
        if first is None:
            self._accepted = event
            return event
        if event.prompt_tokens != first.prompt_tokens:
            raise NumericsMismatch(
                f"{self.target}: the prompt has {event.prompt_tokens} tokens after the answer was resumed, "
                f"{first.prompt_tokens} before",
                peer=self.target,
            )
        return None

    def _choice_of(self, event: Tokens | Finished) -> _Choice:
        number = event.choice
        if self._n == 1:
            number = 0  # a resumed choice keeps its own number
        if number not in self._asked:
            raise FrameError(f"{self.target}: choice {event.choice} was not asked for", peer=self.target)
        while len(self._choices) <= number:
            self._choices.append(_Choice([], 0))
        choice = self._choices[number]
        if choice.finished:
            raise FrameError(f"{self.target}: choice {event.choice} goes on after its end", peer=self.target)
        return choice

    def _take_tokens(self, choice: _Choice, event: Tokens) -> Tokens:
        """Returns the event without the part that had to be repeated."""
        ids = min(len(event.ids), len(choice.owed_ids))
        if event.ids[:ids] != choice.owed_ids[:ids]:
            raise self._differs(event.choice, f"tokens {event.ids[:ids]} where {choice.owed_ids[:ids]} came")
        if event.receipts[:ids] != choice.owed_receipts[:ids]:
            raise self._differs(event.choice, "the same tokens with other receipts")
        text = min(len(event.text), len(choice.owed_text))
        if event.text[:text] != choice.owed_text[:text]:
            raise self._differs(event.choice, f"text {event.text!r} where {choice.owed_text!r} came")
        choice.owed_ids, choice.owed_receipts = choice.owed_ids[ids:], choice.owed_receipts[ids:]
        choice.owed_text = choice.owed_text[text:]
        return replace(
            event,
            ids=event.ids[ids:],
            receipts=event.receipts[ids:],
            text=event.text[text:],
            logprobs=event.logprobs[ids:],
        )

    def _differs(self, choice: int, how: str) -> NumericsMismatch:
        return NumericsMismatch(
            f"{self.target}: choice {choice} cannot be resumed: {how}. It is not the model, or not the "
            "compute mode, that began the answer",
            peer=self.target,
        )
