"""Where faults are put into the kernels' sources: each barrier and wait deleted, each guard deleted, each comparison
and each bound off by one, each index moved by one.

A fault is a change of one place; those that change nothing a correct program could show are listed with their reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_COMMENT = re.compile(r"//[^\n]*")
_GONE = re.compile(r"__syncthreads\(\);|__syncwarp\(\);|copy_wait<[^>]*>\(\);")
_GUARD = re.compile(r"^[ ]*(if \([^\n{}]*\) (?:return|continue);)", re.MULTILINE)
_COMPARISON = re.compile(r" (<=|>=|<|>) ")
_OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_BY_ONE = re.compile(r" [-+] 1\b(?!\.)")
_INDEX = re.compile(r"(?<=[\w\])])\[(?!\])")
_DECLARED = re.compile(
    r"\b(?:float|u8|u16|u32|u64|int|double|bool)\s+(?:\w+(?:\[[^\]\n]*\])+[^;\n,]*[,;]?\s*)+|\(\*\w*\)\[\d+\]"
)


@dataclass(frozen=True, slots=True)
class Mutation:
    """kind: 'barrier', 'guard', 'comparison', 'by one' or 'index'; line: from 1; what: as the line has it, instead."""

    kind: str
    line: int
    start: int
    end: int
    what: str
    instead: str

    def of(self, text: str) -> str:
        return text[: self.start] + self.instead + text[self.end :]


def mutations(text: str) -> Iterator[Mutation]:
    """Every one of a source, in its order within each kind. Lines of the preprocessor stay as they are."""
    code = _COMMENT.sub(lambda found: " " * len(found[0]), text)
    code = re.sub(r"^#[^\n]*", lambda found: " " * len(found[0]), code, flags=re.MULTILINE)
    declared = [found.span() for found in _DECLARED.finditer(code)]

    def made(kind: str, start: int, end: int, instead: str) -> Mutation:
        line = text.count("\n", 0, start) + 1
        return Mutation(kind, line, start, end, " ".join(text[start:end].split()), instead)

    for found in _GONE.finditer(code):
        yield made("barrier", *found.span(), ";")
    for found in _GUARD.finditer(code):
        yield made("guard", *found.span(1), ";")
    for found in _COMPARISON.finditer(code):
        yield made("comparison", *found.span(1), _OTHER[found[1]])
    for found in _BY_ONE.finditer(code):
        yield made("by one", *found.span(), "")
    for found in _INDEX.finditer(code):
        at = found.start()
        if any(start <= at < end for start, end in declared):
            continue
        end = _closing(code, at)
        yield made("index", at, end, f"[({code[at + 1 : end - 1]}) + 1]")


def _closing(code: str, opening: int) -> int:
    """Behind the bracket that closes the one at `opening`."""
    depth = 0
    for at in range(opening, len(code)):
        depth += (code[at] == "[") - (code[at] == "]")
        if depth == 0:
            return at + 1
    raise ValueError(f"a bracket that does not close: {code[opening : opening + 40]!r}")
