"""The mailbox between the engine and a reader: merging, text, time away, the watch over readers."""

from __future__ import annotations

import threading

import pytest

from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.reader_watch import ReaderWatch
from colibri.errors import ColibriError, WorkerLost
from colibri.generation import Accepted, Finished, FinishReason, Tokens, Usage
from colibri.models.detokenizer import IncrementalDetokenizer
from tests.support.tiny_engine import WAIT_S, TinyModel, ask, wait_for

END = Finished(FinishReason.LENGTH, None, Usage(1, 2), 9, 7)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def handle_of(model: TinyModel | None = None, clock: Clock | None = None, **more: object) -> RequestHandle:
    request = ask([1], 50, **more)  # type: ignore[arg-type]
    text = None if model is None else IncrementalDetokenizer(model.tokenizer, request.tail())
    return RequestHandle(request, text, lambda handle: None, lambda: None, clock or Clock())


def test_tokens_merge_while_nobody_reads() -> None:
    handle = handle_of()
    assert isinstance(handle.next_event(0), Accepted)
    assert handle.next_event(0) is None
    for token in (5, 6, 7):
        handle.put(token, token * 10)
    assert handle.next_event(0) == Tokens((5, 6, 7), (50, 60, 70))
    handle.put(8, 80)
    handle.end(END)
    handle.end(WorkerLost("too late"))
    assert handle.next_event(0) == Tokens((8,), (80,))
    assert handle.next_event(0) == END


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

    handle = RequestHandle(ask([1]), None, lambda handle: None, dead)
    with pytest.raises(ColibriError, match="its thread has ended"):
        list(handle.events())


@pytest.mark.parametrize("step", [1, 2, 3, 50])
def test_text_never_cuts_a_character(model: TinyModel, step: int) -> None:
    text = "naïve 🌍 中文!"
    ids = model.tokenizer.encode(text, add_special=False)
    assert len(ids) == len(text.encode())
    handle = handle_of(model)
    handle.next_event(0)
    pieces = []
    for at in range(0, len(ids), step):
        for token in ids[at : at + step]:
            handle.put(token, 1)
        event = handle.next_event(0)
        assert isinstance(event, Tokens)
        pieces.append(event.text)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)


def test_an_unfinished_character_is_left_to_the_resumed_answer(model: TinyModel) -> None:
    ids = model.tokenizer.encode("a🌍b", add_special=False)
    for cut in range(1, len(ids)):
        first, second = handle_of(model), handle_of(model, resumed=ids[:cut])
        text = ""
        for handle, part in ((first, ids[:cut]), (second, ids[cut:])):
            handle.next_event(0)
            for token in part:
                handle.put(token, 1)
            event = handle.next_event(0)
            assert isinstance(event, Tokens)
            text += event.text
        assert text == "a🌍b"


def test_stop_ids_and_special_tokens_have_no_text(model: TinyModel) -> None:
    a, b = model.tokenizer.encode("ab", add_special=False)
    handle = handle_of(model, stop_ids=[b])
    handle.next_event(0)
    for token in (a, 2, b):
        handle.put(token, 1)
    event = handle.next_event(0)
    assert isinstance(event, Tokens)
    assert (event.ids, event.text) == ((a, 2, b), "a")


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
    handle.end(END)
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
