"""Suggest the known word that somebody meant by an unknown one."""

from __future__ import annotations

from collections.abc import Iterable

#: Least share of letters that two words have in common, in order. Below it, suggestions name what nobody meant.
_CLOSE = 0.7
#: Letters from which on the beginning of a single known word stands for it.
_BEGINNING = 3


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no known word is close."""
    import difflib  # only errors need it, and the command line must start quickly

    words: dict[str, str] = {}
    for word in known:
        words.setdefault(_bare(word), word)
    bare = _bare(name)
    close = difflib.get_close_matches(bare, words, n=1, cutoff=_CLOSE)
    if not close and len(bare) >= _BEGINNING:
        longer = [word for word in words if word.startswith(bare)]
        close = longer if len(longer) == 1 else []
    return f"; did you mean {words[close[0]]!r}?" if close else ""


def _bare(word: str) -> str:
    """Without what all options, or all variables, begin with: it would make any two of them alike."""
    return word.lstrip("-").removeprefix("COLIBRI_")
