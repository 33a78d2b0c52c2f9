"""The mailbox between the engine and a reader: merging, text, time away, the watch over readers."""

from __future__ import annotations

import itertools
import threading
from dataclasses import replace

import pytest

from colibri.coordinator.answer_text import AnswerText
from colibri.coordinator.handle import MAX_EVENT_TOKENS, RequestHandle
from colibri.coordinator.reader_watch import ReaderWatch
from colibri.coordinator.request import GenerationRequest
from colibri.errors import ColibriError, WorkerLost
from colibri.generation import Accepted, Finished, FinishReason, Prompt, Tokens, Usage
from tests.support.tiny_engine import WAIT_S, TinyModel, ask, wait_for

END = Finished(FinishReason.LENGTH, None, Usage(1, 2), 9, 7)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def handle_of(
    model: TinyModel | None = None, clock: Clock | None = None, sampling_choice: int = 0, **more: object
) -> RequestHandle:
    request = ask([1], 50, **more)  # type: ignore[arg-type]
    request = replace(request, sampling=replace(request.sampling, choice=sampling_choice))
    return RequestHandle(
        request,
        [text_of(model, request) for _ in range(request.n)],
        lambda handle: None,
        lambda: None,
        clock or Clock(),
    )


def text_of(model: TinyModel | None, request: GenerationRequest) -> AnswerText | None:
    if model is None:
        return None
    text = AnswerText(model.tokenizer, request.context_tail(), request.stop, request.stop_ids)
    for token in request.resumed_ids.tolist():
        text.push(token)
    return text


def test_tokens_merge_while_nobody_reads() -> None:
    handle = handle_of()
    assert isinstance(handle.next_event(0), Accepted)
    assert handle.next_event(0) is None
    for token in (5, 6, 7):
        handle.put(token, token * 10)
    assert handle.next_event(0) == Tokens((5, 6, 7), (50, 60, 70))
    handle.put(8, 80)
    handle.finish(END)
    handle.finish(replace(END, receipt=8))
    handle.fail(WorkerLost("too late"))
    assert handle.next_event(0) == Tokens((8,), (80,))
    assert handle.next_event(0) == END


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_what_a_reader_missed_comes_in_bounded_events(model: TinyModel, stop: tuple[str, ...]) -> None:
    ids = [*model.tokenizer.encode("ab" * MAX_EVENT_TOKENS, add_special=False), 200]
    handle = handle_of(model, stop=stop)
    text = text_of(model, handle.request)
    assert text is not None
    for at, token in enumerate(ids):
        handle.put(token, at, 0, text.push(token) if stop else None)
    handle.finish(END)
    events = [event for event in handle.events() if isinstance(event, Tokens)]
    assert [len(event.ids) for event in events[:3]] == [MAX_EVENT_TOKENS, MAX_EVENT_TOKENS, 1]
    assert [receipt for event in events for receipt in event.receipts] == list(range(len(ids)))
    assert [len(event.text) for event in events[:2]] == [MAX_EVENT_TOKENS - 1, MAX_EVENT_TOKENS]


def test_a_waiting_reader_is_woken() -> None:
    handle = handle_of()
    handle.next_event(0)
    timer = threading.Timer(0.05, handle.put, (5, 50))
    timer.start()
    assert handle.next_event(WAIT_S) == Tokens((5,), (50,))


def test_a_dead_engine_does_not_leave_its_readers_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri.coordinator.handle._LOOK_S", 0.01)

    def dead() -> None:
        raise ColibriError("engine: its thread has ended")

    handle = RequestHandle(ask([1]), [None], lambda handle: None, dead)
    with pytest.raises(ColibriError, match="its thread has ended"):
        list(handle.events())


def texts_of(handle: RequestHandle) -> list[str]:
    """Text of each Tokens event up to the end."""
    return [event.text for event in handle.events() if isinstance(event, Tokens)]


@pytest.mark.parametrize("step", [1, 2, 3, 50])
def test_text_never_cuts_a_glyph(model: TinyModel, step: int) -> None:
    """Characters of several tokens, and clusters of several characters."""
    glyphs = [
        "n",
        "a",
        "i\u0308",
        "v",
        "e",
        " ",
        "🌍",
        "👩🏽‍🚀",
        "🇫🇷",
        "🇯🇵",
        "क्षि",
        "e\u0301\u0323",
        "\r\n",
        "한",
        "!",
    ]
    text = "".join(glyphs)
    ends = set(itertools.accumulate(map(len, glyphs)))
    ids = model.tokenizer.encode(text, add_special=False)
    assert len(ids) == len(text.encode())
    handle = handle_of(model)
    assert isinstance(handle.next_event(0), Accepted)
    out = ""
    for at in range(0, len(ids), step):
        for token in ids[at : at + step]:
            handle.put(token, 1)
        event = handle.next_event(0)
        assert isinstance(event, Tokens)
        out += event.text
        assert text.startswith(out)
        assert not out or len(out) in ends
    handle.finish(END)
    assert out + "".join(texts_of(handle)) == text


@pytest.mark.parametrize("stop", [(), ("zz",)])
def test_a_resumed_answer_goes_on_with_what_was_held_back(model: TinyModel, stop: tuple[str, ...]) -> None:
    whole = "a🌍e\u0301zb"
    ids = model.tokenizer.encode(whole, add_special=False)
    for cut in range(1, len(ids)):
        first, second = handle_of(model, stop=stop), handle_of(model, stop=stop, resumed=ids[:cut])
        out = ""
        for handle, part in ((first, ids[:cut]), (second, ids[cut:])):
            handle.next_event(0)
            text = handle._mail[0].text
            assert text is not None
            for token in part:
                handle.put(token, 1, 0, text.push(token) if stop else None)
            event = handle.next_event(0)
            assert isinstance(event, Tokens)
            out += event.text
        second.finish(END)
        assert out + "".join(texts_of(second)) == whole


def test_stop_ids_and_special_tokens_have_no_text(model: TinyModel) -> None:
    a, b = model.tokenizer.encode("ab", add_special=False)
    handle = handle_of(model, stop_ids=[b])
    for token in (a, 2, b):
        handle.put(token, 1)
    handle.finish(END)
    events = list(handle.events())
    assert events[1:] == [Tokens((a, 2, b), (1, 1, 1)), Tokens((), (), "a"), END]


def test_choices_take_turns_and_each_has_its_end() -> None:
    handle = handle_of(n=3)
    handle.next_event(0)
    for slot in (2, 0, 0, 1):
        handle.put(5 + slot, 50, slot)
    handle.finish(replace(END, choice=0), 0)
    assert handle.next_event(0) == Tokens((5, 5), (50, 50), choice=0)
    assert handle.next_event(0) == Tokens((6,), (50,), choice=1)
    assert handle.next_event(0) == Tokens((7,), (50,), choice=2)
    assert handle.next_event(0) == replace(END, choice=0)
    assert handle.next_event(0) is None
    assert not handle.ended
    handle.fail(WorkerLost("gone"))
    handle.put(8, 80, 2)
    assert handle.next_event(0) == Tokens((8,), (80,), choice=2)
    with pytest.raises(WorkerLost):
        handle.next_event(0)


def test_a_resumed_choice_keeps_its_index() -> None:
    handle = handle_of(sampling_choice=3)
    handle.put(5, 50)
    handle.finish(replace(END, choice=3))
    assert list(handle.events())[1:] == [Tokens((5,), (50,), choice=3), replace(END, choice=3)]


def test_the_prompt_comes_first() -> None:
    handle = handle_of()
    handle.put_prompt(Prompt((1,), "x"))
    handle.put(5, 50)
    handle.finish(END)
    assert list(handle.events())[1:] == [Prompt((1,), "x"), Tokens((5,), (50,)), END]


def test_time_away() -> None:
    clock = Clock()
    handle = handle_of(clock=clock)
    clock.now += 3
    assert handle.away_s() == 3  # nobody has come yet
    handle.next_event(0)
    clock.now += 2
    assert handle.away_s() == 2
    waiting = threading.Thread(target=handle.next_event, args=(WAIT_S,))
    waiting.start()
    wait_for("the reader", lambda: handle.away_s() == 0)
    clock.now += 50
    assert handle.away_s() == 0  # it stands at the counter
    handle.finish(END)
    waiting.join(WAIT_S)
    clock.now += 1
    assert handle.away_s() == 1


def test_the_watch_cuts_off_who_stays_away() -> None:
    clock = Clock()
    slow, quick = handle_of(clock=clock), handle_of(clock=clock)
    cut = threading.Event()
    cut_quick = threading.Event()
    watch = ReaderWatch(limit_s=10, look_s=0.01)
    with watch.watching(slow, cut.set), watch.watching(quick, cut_quick.set):
        clock.now += 9
        quick.next_event(0)
        assert not cut.wait(0.1)
        clock.now += 2
        assert cut.wait(WAIT_S)
        assert not cut_quick.is_set()
    clock.now += 100
    assert not cut_quick.wait(0.1)  # no longer watched
    watch.close()
