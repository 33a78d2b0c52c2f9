"""The text of an answer: glyphs whole, stop strings never shown, and the same after any prefix of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from colibri.coordinator.answer_text import AnswerText
from tests.support.tiny_engine import TinyModel


def run(text: AnswerText, ids: Sequence[int], least: int = 0) -> tuple[list[str], str]:
    """The piece of each token up to the stop string, and what was held at the end."""
    pieces = []
    for at, token in enumerate(ids):
        pieces.append(text.push(token, may_stop=at + 1 >= least))
        if text.stopped is not None:
            break
    return pieces, text.finish()


@pytest.mark.parametrize(
    ("text", "stops", "shown", "stopped"),
    [
        ("Hello END and more", ("END",), "Hello ", "END"),
        ("Hello EN", ("END",), "Hello EN", None),
        ("ab", ("b", "ab"), "", "ab"),
        ("cafe\u0301 x", (" x",), "cafe\u0301", " x"),
        ("a🌍b", ("🌍",), "a", "🌍"),
        ("👩🏽‍🚀 flies", ("flies",), "👩🏽‍🚀 ", "flies"),
        ("one\ntwo", ("\n",), "one", "\n"),
        ("aaaaab", ("aab",), "aaa", "aab"),
    ],
)
def test_the_text_ends_before_the_stop_string(
    model: TinyModel, text: str, stops: tuple[str, ...], shown: str, stopped: str | None
) -> None:
    """Each byte is a token here."""
    ids = model.tokenizer.encode(text, add_special=False)
    answer = AnswerText(model.tokenizer, [1], stops)
    pieces, held = run(answer, ids)
    assert ("".join(pieces) + held, answer.stopped) == (shown, stopped)
    assert stopped is None or held == ""


def test_no_part_of_a_stop_string_is_ever_shown(model: TinyModel) -> None:
    ids = model.tokenizer.encode("abcSTOPd", add_special=False)
    pieces, _ = run(AnswerText(model.tokenizer, [1], ("STOP",)), ids)
    assert pieces == ["", "a", "b", "c", "", "", ""]
    pieces, held = run(AnswerText(model.tokenizer, [1], ("STOP!",)), ids)
    assert pieces == ["", "a", "b", "c", "", "", "", "STOP"]
    assert held == "d"


def test_before_the_least_length_stop_strings_are_text(model: TinyModel) -> None:
    ids = model.tokenizer.encode("x.y.z", add_special=False)
    for least, shown in ((0, "x"), (2, "x"), (3, "x.y"), (4, "x.y"), (5, "x.y.z")):
        answer = AnswerText(model.tokenizer, [1], (".",))
        pieces, held = run(answer, ids, least)
        assert "".join(pieces) + held == shown


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    text=st.text(st.sampled_from("ab \n\u0301\u200d👩🇫🇷क्ष"), max_size=12),
    stops=st.lists(st.text(st.sampled_from("ab \u0301👩"), min_size=1, max_size=3), max_size=3),
    cut=st.integers(0, 30),
)
def test_it_resumes_anywhere(model: TinyModel, text: str, stops: list[str], cut: int) -> None:
    ids = model.tokenizer.encode(text, add_special=False)
    whole, held = run(AnswerText(model.tokenizer, [1], stops), ids)
    cut = min(cut, len(whole))
    first = AnswerText(model.tokenizer, [1], stops)
    again = AnswerText(model.tokenizer, [1], stops)
    before, _ = run(first, ids[:cut])
    for token in ids[:cut]:
        again.push(token)
    rest, held_again = run(again, ids[cut : len(whole)])
    assert before + rest == whole
    if cut < len(whole) or again.stopped is None:
        assert held_again == held
