"""An answer over several calls, cut everywhere: the same events as from one call, and only then."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from colibri.client.answer import Answers
from colibri.client.messages import to_request
from colibri.client.resumption import Resumption
from colibri.errors import (
    Cancelled,
    DuplicateRequest,
    FrameError,
    InvalidInput,
    NumericsMismatch,
    ShuttingDown,
    WorkerLost,
)
from colibri.generation import (
    Accepted,
    Event,
    Finished,
    FinishReason,
    Prompt,
    Resume,
    TokenLogprobs,
    Tokens,
    Usage,
)
from colibri.v1 import generation_pb2 as pb

PROMPT = (5, 6, 7)
SEED = 99


@dataclass
class Script:
    """Answers as a server gives them: what each choice says, and a model of resuming that is independent of the
    client's. pieces: (ids, text) per step; tail: text that only the end sets free."""

    pieces: Sequence[Sequence[tuple[tuple[int, ...], str]]]
    tail: str = ""

    def receipts(self, choice: int, upto: int) -> list[int]:
        ids = [token for part, _ in self.pieces[choice] for token in part]
        chain, found = 7 * choice, []
        for token in ids[:upto]:
            chain = hash((chain, token)) & (2**64 - 1)
            found.append(chain)
        return found

    def answer(self, request: pb.GenerateRequest) -> list[Event]:
        """A whole call, choices interleaved."""
        events: list[Event] = [Accepted(request.request_id, len(PROMPT), SEED)]
        if request.echo:
            events.append(Prompt(PROMPT, "abc"))
        if request.HasField("resume"):
            assert request.n <= 1
            choices = [request.resume.choice]
        else:
            choices = list(range(max(1, request.n)))
        streams = [self._stream(choice, request) for choice in choices]
        while any(streams):
            for stream in streams:
                if stream:
                    events.append(stream.pop(0))
        return events

    def _stream(self, choice: int, request: pb.GenerateRequest) -> list[Event]:
        told = list(request.resume.generated_ids)
        events: list[Event] = []
        so_far = 0
        for ids, text in self.pieces[choice]:
            first, so_far = so_far, so_far + len(ids)
            if so_far <= len(told) and ids:
                assert list(ids) == told[first:so_far]
                continue
            assert first >= len(told), "resumed inside a message"
            receipts = self.receipts(choice, so_far)[first:]
            logprobs = tuple(TokenLogprobs(-0.5 * token) for token in ids)
            events.append(Tokens(ids, tuple(receipts), text, choice, logprobs))
        if told:
            assert request.resume.receipt == self.receipts(choice, len(told))[-1]
        else:
            assert request.resume.receipt == 0
        if self.tail:
            events.append(Tokens((), (), self.tail, choice))
        last = self.receipts(choice, so_far)[-1]
        events.append(
            Finished(FinishReason.LENGTH, None, Usage(len(PROMPT), so_far), last, SEED, "numerics", choice)
        )
        return events


ONE = Script([[((1,), "a"), ((2,), ""), ((3, 4, 5), "bcd"), ((6,), "e")]], tail="f")
THREE = Script(
    [
        [((1,), "a"), ((2,), "b"), ((3,), "")],
        [((11,), "x"), ((12, 13), "yz")],
        [((21,), ""), ((22,), "\u00e9")],
    ],
    tail="!",
)


def run(script: Script, request: pb.GenerateRequest, cuts: Sequence[int]) -> tuple[list[Event], int]:
    """Reads an answer whose k-th call is lost after cuts[k] events; returns its events and the calls it took."""
    resumption = Resumption(request, "host:1")
    events: list[Event] = []
    calls = 0
    while not resumption.done:
        call = script.answer(resumption.next_request())
        if calls < len(cuts):
            call = call[: cuts[calls]]
        calls += 1
        for event in call:
            news = resumption.take(event)
            if news is not None:
                events.append(news)
        assert calls < 100
    return events, calls


def gathered(events: list[Event]) -> list[object]:
    answers = Answers()
    for event in events:
        answers.take(event)
    heads = [event for event in events if isinstance(event, (Accepted, Prompt))]
    return [heads, answers.all()]


@pytest.mark.parametrize("echo", [False, True])
@pytest.mark.parametrize(("script", "n"), [(ONE, 1), (THREE, 3)])
def test_cut_once_anywhere(script: Script, n: int, echo: bool) -> None:
    request = to_request(PROMPT, n=n, echo=echo, request_id="q")
    whole = script.answer(request)
    for cut in range(len(whole) + 1):
        events, calls = run(script, request, [cut])
        assert gathered(events) == gathered(whole), cut
        assert calls == 1 if cut == len(whole) else calls >= 2


@pytest.mark.parametrize(("script", "n"), [(ONE, 1), (THREE, 3)])
def test_cut_again_and_again(script: Script, n: int) -> None:
    request = to_request(PROMPT, n=n, echo=True, request_id="q")
    whole = script.answer(request)
    for seed in range(300):
        draw = random.Random(seed)
        cuts = [draw.randrange(len(whole)) for _ in range(draw.randrange(1, 8))]
        assert gathered(run(script, request, cuts)[0]) == gathered(whole), seed


def test_an_answer_that_was_resumed_by_its_user() -> None:
    """Its choice keeps its number, its tokens stay in front."""
    resume = Resume((11,), THREE.receipts(1, 1)[0], choice=1)
    request = to_request(PROMPT, resume=resume, request_id="q")
    whole = THREE.answer(request)
    for cut in range(len(whole) + 1):
        events, _ = run(THREE, request, [cut, cut])
        assert gathered(events) == gathered(whole)


def test_what_the_next_call_asks() -> None:
    resumption = Resumption(to_request(PROMPT, echo=True, logprobs=2, max_tokens=9), "host:1")
    first = resumption.next_request()
    assert not first.HasField("resume")
    assert not first.sampling.HasField("seed")
    for event in ONE.answer(first)[:5]:
        resumption.take(event)
    again = resumption.next_request()
    assert again.request_id == first.request_id == resumption.request_id
    assert (again.sampling.seed, again.echo, again.logprobs) == (SEED, False, 2)
    # What came last is computed once more.
    assert list(again.resume.generated_ids) == [1, 2]
    assert again.resume.receipt == ONE.receipts(0, 2)[-1]
    assert again.stopping.max_tokens == 9
    assert list(again.token_ids.ids) == list(PROMPT)


def cut_after(count: int) -> tuple[Resumption, list[Event]]:
    """A resumption whose first call was lost, and what its second one brings."""
    resumption = Resumption(to_request(PROMPT, request_id="q"), "host:1")
    for event in ONE.answer(resumption.next_request())[:count]:
        resumption.take(event)
    return resumption, ONE.answer(resumption.next_request())


@pytest.mark.parametrize(
    ("change", "how"),
    [
        ({"ids": (9, 9, 9)}, r"tokens \(9, 9, 9\) where \(3, 4, 5\) came"),
        ({"receipts": (1, 2, 3)}, "the same tokens with other receipts"),
        ({"text": "bcx"}, "text 'bcx' where 'bcd' came"),
    ],
)
def test_other_bits_are_no_continuation(change: dict[str, object], how: str) -> None:
    resumption, call = cut_after(4)
    assert resumption.take(call[0]) is None
    repeated = call[1]
    assert isinstance(repeated, Tokens)
    assert repeated.ids == (3, 4, 5)
    with pytest.raises(NumericsMismatch, match=f"host:1: choice 0 cannot be resumed: {how}"):
        resumption.take(replace(repeated, **change))  # type: ignore[arg-type]


def test_another_prompt_is_no_continuation() -> None:
    resumption, _ = cut_after(3)
    with pytest.raises(NumericsMismatch, match="4 tokens after the answer was resumed, 3 before"):
        resumption.take(Accepted("q", 4, SEED))


def test_an_earlier_end_is_no_continuation() -> None:
    resumption, call = cut_after(3)
    with pytest.raises(NumericsMismatch, match="the answer ends earlier than before"):
        resumption.take(call[-1])


def test_merged_messages_are_cut_where_the_news_begin() -> None:
    """A reader that lags gets several steps in one message."""
    resumption, _ = cut_after(4)
    receipts = ONE.receipts(0, 6)
    merged = Tokens(
        (3, 4, 5, 6), tuple(receipts[2:]), "bcde", 0, tuple(TokenLogprobs(-x) for x in (3, 4, 5, 6))
    )
    assert resumption.take(merged) == Tokens((6,), (receipts[5],), "e", 0, (TokenLogprobs(-6),))
    # A part of what is repeated is nothing new.
    resumption, _ = cut_after(4)
    assert resumption.take(Tokens((3,), (receipts[2],), "b")) is None
    assert resumption.take(Tokens((4, 5, 6), tuple(receipts[3:6]), "cde")) == Tokens(
        (6,), (receipts[5],), "e"
    )


@pytest.mark.parametrize("number", [1, 2**31])
def test_choices_that_nobody_asked_for(number: int) -> None:
    resumption = Resumption(to_request(PROMPT, n=1), "host:1")
    resumption.next_request()
    three = Resumption(to_request(PROMPT, n=3), "host:1")
    three.next_request()
    assert resumption.take(Tokens((1,), (1,), "", number)) is not None  # the only one, whatever its number
    with pytest.raises(FrameError, match="was not asked for"):
        three.take(Tokens((1,), (1,), "", number + 2))


def test_nothing_comes_after_the_end() -> None:
    resumption = Resumption(to_request(PROMPT), "host:1")
    for event in ONE.answer(resumption.next_request()):
        resumption.take(event)
    assert resumption.done
    with pytest.raises(FrameError, match="goes on after its end"):
        resumption.take(Tokens((1,), (1,)))


def test_which_failures_are_asked_again() -> None:
    resumption = Resumption(to_request(PROMPT), "host:1")
    resumption.next_request()
    assert resumption.may_ask_again(WorkerLost("w0 is gone"))
    assert resumption.may_ask_again(ShuttingDown("drains"))
    assert resumption.may_ask_again(Cancelled("by a server that ends"))
    assert not resumption.may_ask_again(InvalidInput("n", "1", 2))
    assert not resumption.may_ask_again(DuplicateRequest("somebody else's"))
    resumption.next_request()
    assert resumption.may_ask_again(DuplicateRequest("our own lost call"))
