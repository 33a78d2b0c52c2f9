"""Stop strings: found wherever the text is divided, first by their end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.coordinator.stop_strings import StopMatcher


def first_end(text: str, stops: list[str]) -> tuple[int, str] | None:
    """By trying everything."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return end, max(found, key=len)
    return None


def fed(pieces: list[str], stops: list[str]) -> tuple[int, str] | None:
    matcher = StopMatcher(stops)
    before = 0
    for piece in pieces:
        found = matcher.read(piece, counts=True)
        if found is not None:
            return before + found[0], found[1]
        before += len(piece)
    return None


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=4),
)
def test_the_division_does_not_matter(pieces: list[str], stops: list[str]) -> None:
    assert fed(pieces, stops) == first_end("".join(pieces), stops)


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4))
def test_what_is_held_may_become_a_stop_string(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    matcher.read(text, counts=False)
    longest = max(
        (n for stop in stops for n in range(min(len(stop), len(text) + 1)) if text.endswith(stop[:n])),
        default=0,
    )
    assert matcher.held == longest


@pytest.mark.parametrize(
    ("text", "stops", "found"),
    [
        ("abcd", ["abcd", "bc"], (3, "bc")),
        ("xab", ["b", "ab"], (3, "ab")),
        ("aab", ["ab"], (3, "ab")),
        ("ab🌍c", ["🌍"], (3, "🌍")),
        ("ab", ["c"], None),
    ],
)
def test_the_first_that_ends_and_then_the_longest(
    text: str, stops: list[str], found: tuple[int, str] | None
) -> None:
    assert fed([text], stops) == fed(list(text), stops) == found


def test_those_passed_over_do_not_count_later() -> None:
    matcher = StopMatcher(["abab"])
    assert matcher.read("xabab", counts=False) is None
    assert matcher.held == 2
    assert matcher.read("b", counts=True) is None
    assert matcher.read("abab", counts=True) == (4, "abab")
