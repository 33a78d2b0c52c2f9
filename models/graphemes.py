"""Find where a growing text may be cut without tearing a glyph: boundaries of extended grapheme clusters (UAX #29).

Properties come from `unicodedata`. If it lacks one, no boundary is assumed: holding text back is right, a torn
glyph is not.
"""

from __future__ import annotations

import unicodedata

MAX_CLUSTER = 64
"""Code points after which an open cluster is taken to be abuse: the longest emoji sequence has 10, and the
Stream-Safe Text Format (UAX #15) ends a run of combining marks at 30.
"""

_ZWJ, _ZWNJ = "\u200d", "\u200c"
_VIRAMA = 9
#: Grapheme_Cluster_Break=Extend or SpacingMark that no category tells: emoji modifiers, tags, halfwidth sound
#: marks, Thai and Lao am.
_EXTENDS = (("\U0001f3fb", "\U0001f3ff"), ("\U000e0020", "\U000e007f"), ("\uff9e", "\uff9f"))
_AM = "\u0e33\u0eb3"
#: Grapheme_Cluster_Break=Prepend.
_PREPEND = (
    *(("\u0600", "\u0605"), ("\u06dd", "\u06dd"), ("\u070f", "\u070f"), ("\u0890", "\u0891")),
    *(("\u08e2", "\u08e2"), ("\u0d4e", "\u0d4e"), ("\U000110bd", "\U000110bd"), ("\U000110cd", "\U000110cd")),
    *(("\U000111c2", "\U000111c3"), ("\U0001193f", "\U00011941"), ("\U00011a3a", "\U00011a3a")),
    *(("\U00011a84", "\U00011a89"), ("\U00011d46", "\U00011d46"), ("\U00011f02", "\U00011f02")),
)
_HANGUL_L = (("\u1100", "\u115f"), ("\ua960", "\ua97c"))
_HANGUL_VT = (("\u1160", "\u11ff"), ("\ud7b0", "\ud7fb"))
_HANGUL_SYLLABLE = (("\uac00", "\ud7a3"),)


def closed_end(text: str, limit: int | None = None) -> int:
    """Returns how much of `text` may go out: up to the last boundary, at or before `limit`, that no later text can
    undo.

    text: begins at a boundary and may go on. Its last cluster counts as open, unless a control character (such as a
        line feed) closes it. A cluster of more than MAX_CLUSTER code points is let go.
    """
    at = len(text) if limit is None else limit
    if at == len(text) and text and _is_control(text[-1]) and text[-1] != "\r":
        return at
    if at == len(text):
        at -= 1
    while at > 0 and not _may_break(text, at):
        at -= 1
    if max(at, 0) == 0 and len(text) > MAX_CLUSTER:
        return len(text) if limit is None else limit
    return max(at, 0)


def _may_break(text: str, at: int) -> bool:
    """Whether a boundary lies between text[at - 1] and text[at] (GB3 to GB13)."""
    before, after = text[at - 1], text[at]
    if before < "\u0300" and after < "\u0300" and before != "\r":
        return True
    if before == "\r" and after == "\n":
        return False
    if _is_control(before) or _is_control(after):
        return True
    if _extends(after) or before == _ZWJ or _in_conjunct(text, at):
        return False
    if _within(before, _PREPEND) or _joins_hangul(before, after):
        return False
    if _is_regional(before) and _is_regional(after):
        start = at
        while start > 0 and _is_regional(text[start - 1]):
            start -= 1
        return (at - start) % 2 == 0
    return True


def _in_conjunct(text: str, at: int) -> bool:
    """Whether a virama among the marks before `at` may bind what follows (GB9c)."""
    while at > 0 and _extends(text[at - 1]):
        at -= 1
        if unicodedata.combining(text[at]) == _VIRAMA:
            return True
    return False


def _extends(c: str) -> bool:
    """Whether it extends a cluster. Cn counts: it may be a mark of a later Unicode than Python's."""
    return (
        unicodedata.category(c) in ("Mn", "Mc", "Me", "Cn")
        or c in (_ZWJ, _ZWNJ)
        or c in _AM
        or _within(c, _EXTENDS)
    )


def _is_control(c: str) -> bool:
    """Grapheme_Cluster_Break=CR, LF or Control."""
    category = unicodedata.category(c)
    if category == "Cf":
        return not (c in (_ZWJ, _ZWNJ) or _within(c, _EXTENDS) or _within(c, _PREPEND))
    return category in ("Cc", "Zl", "Zp")


def _is_regional(c: str) -> bool:
    return "\U0001f1e6" <= c <= "\U0001f1ff"


def _joins_hangul(before: str, after: str) -> bool:
    """Whether a syllable block may go on: GB6 to GB8, and a little more."""
    if _within(before, _HANGUL_L):
        return _within(after, _HANGUL_L) or _within(after, _HANGUL_VT) or _within(after, _HANGUL_SYLLABLE)
    return _within(after, _HANGUL_VT) and (_within(before, _HANGUL_VT) or _within(before, _HANGUL_SYLLABLE))


def _within(c: str, ranges: tuple[tuple[str, str], ...]) -> bool:
    return any(low <= c <= high for low, high in ranges)
