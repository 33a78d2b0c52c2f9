"""Boundaries of glyphs in a growing text, against clusters that Unicode's own documents name."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.models.graphemes import MAX_CLUSTER, closed_end

#: UAX #29, table 2 and GraphemeBreakTest.txt, and emoji of emoji-zwj-sequences.txt: one cluster each.
CLUSTERS = [
    "a",
    "g\u0308",
    "\u1100\u1161\u11a8",
    "\uac01\u11a8",
    "\u0e01\u0e33",
    "\u0ba8\u0bbf",
    "\u0937\u093f",
    "\u0915\u094d\u0937\u093f",
    "\u0915\u094d\u200d\u0937",
    "\u0600\u0661",
    "e\u0301\u0323\u0327",
    "\r\n",
    "\n",
    "👩",
    "👩🏽",
    "👩🏽‍🚀",
    "👨‍👩‍👧‍👦",
    "👩‍❤️‍💋‍👩",
    "🏳️‍🌈",
    "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
    "🇫🇷",
    "🇯🇵",
    "1️⃣",
    "☝🏿",
    "ｶﾞ",
    "ก็",
    "שָׁ",
]


def prefixes(text: str) -> list[int]:
    """What has gone out after each character, fed one at a time."""
    out, held = 0, ""
    ends = []
    for character in text:
        held += character
        end = closed_end(held)
        held = held[end:]
        out += end
        ends.append(out)
    return ends


@pytest.mark.parametrize("first", CLUSTERS)
@pytest.mark.parametrize("second", CLUSTERS)
def test_only_whole_clusters_go_out(first: str, second: str) -> None:
    text = first + second + "x\n"
    allowed = {0, len(first), len(first) + len(second), len(text) - 1, len(text)}
    found = prefixes(text)
    assert set(found) <= allowed
    assert found[-1] == len(text)


@pytest.mark.parametrize(
    ("text", "closed"), [("", 0), ("a", 0), ("ab", 1), ("a\n", 2), ("a\r", 1), ("a\rb", 2)]
)
def test_the_last_cluster_stays_open(text: str, closed: int) -> None:
    assert closed_end(text) == closed


def test_flags_pair_from_the_left() -> None:
    text = "🇫🇷🇯🇵🇩🇪"
    assert prefixes(text) == [0, 0, 2, 2, 4, 4]


@pytest.mark.parametrize(("limit", "closed"), [(0, 0), (1, 1), (2, 1), (3, 3), (4, 4)])
def test_a_limit_moves_back_to_a_boundary(limit: int, closed: int) -> None:
    assert closed_end("ae\u0301bc", limit) == closed


def test_an_endless_cluster_is_let_go() -> None:
    ends = prefixes("e" + "\u0301" * 500)
    assert max(after - before for before, after in itertools.pairwise([0, *ends])) == MAX_CLUSTER + 1
    assert len("e" + "\u0301" * 500) - ends[-1] <= MAX_CLUSTER


@given(st.text(max_size=40))
def test_nothing_is_lost_and_nothing_taken_back(text: str) -> None:
    ends = prefixes(text)
    assert ends == sorted(ends)
    assert all(end <= at + 1 for at, end in enumerate(ends))
