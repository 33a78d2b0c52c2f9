"""Put events together again: what each choice of a request brought."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from colibri.errors import ColibriError
from colibri.generation import Event, Finished, Prompt, TokenLogprobs, Tokens


@dataclass(slots=True)
class Answer:
    """One choice. `ids`, `receipts` and, if asked for, `logprobs` have equal lengths. `finished` is None while it
    runs.
    """

    choice: int = 0
    text: str = ""
    ids: list[int] = field(default_factory=list)
    receipts: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finished: Finished | None = None


@dataclass(slots=True)
class Answers:
    """All choices of one request, by their numbers; `prompt` if it was echoed."""

    choices: dict[int, Answer] = field(default_factory=dict)
    prompt: Prompt | None = None

    def take(self, event: Event) -> None:
        if isinstance(event, Tokens):
            answer = self._of(event.choice)
            answer.text += event.text
            answer.ids += event.ids
            answer.receipts += event.receipts
            answer.logprobs += event.logprobs
        elif isinstance(event, Finished):
            self._of(event.choice).finished = event
        elif isinstance(event, Prompt):
            self.prompt = event

    def all(self) -> list[Answer]:
        """Returns the answers in the order of their numbers."""
        return [self.choices[number] for number in sorted(self.choices)]

    def only(self) -> Answer:
        """Returns the only answer. Raises ColibriError unless there is exactly one."""
        found = self.all()
        if len(found) != 1:
            raise ColibriError(f"one answer was expected, {len(found)} came: ask for all of them")
        return found[0]

    def _of(self, number: int) -> Answer:
        return self.choices.setdefault(number, Answer(number))


def collect(events: Iterable[Event]) -> Answers:
    """Reads all events. Raises what ends them."""
    answers = Answers()
    for event in events:
        answers.take(event)
    return answers
