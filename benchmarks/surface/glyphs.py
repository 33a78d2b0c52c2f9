"""Streamed text against Unicode's grapheme clusters: the corpus, token by token, on two tokenizers."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from itertools import accumulate
from pathlib import Path

from benchmarks.peers import python, script
from benchmarks.surface.corpus import corpus
from benchmarks.table import Line, Outcome
from colibri.coordinator.answer_text import AnswerText
from colibri.models.demo_model import build_demo_model
from colibri.models.home import colibri_home
from colibri.models.plain_tokenizer import write_plain_tokenizer
from colibri.models.tokenizer import Tokenizer


def measure() -> Outcome:
    """Every text as an answer: each piece must end where a cluster does, all together must be the text.

    A U+FFFD at the very end looks like an unfinished character, which an answer leaves out.
    """
    cuts, torn, broken = 0, list[str](), list[str]()
    with tempfile.TemporaryDirectory() as name:
        write_plain_tokenizer(Path(name), 300, 4096)
        for folder in (build_demo_model(colibri_home(os.environ)), Path(name)):
            tokenizer = Tokenizer.load(folder)
            said, ends = [], []
            for text in corpus():
                answer = AnswerText(tokenizer, [])
                ids = tokenizer.encode(text, add_special=False)
                pieces = [answer.push(token) for token in ids]
                ends.append(list(accumulate(map(len, pieces))))
                said.append("".join(pieces) + answer.finish())
                whole = tokenizer.decode(ids)
                if said[-1] not in (whole, whole.removesuffix("\ufffd")):
                    broken.append(repr(text[:40]))
            for text, at, allowed in zip(said, ends, _clusters(said), strict=True):
                cuts += len(set(at))
                torn += [repr(text[max(0, end - 4) : end + 4]) for end in set(at) - {0, *allowed}]
    return Outcome(
        f"{len(torn)} of {cuts:,} cuts inside a cluster, {len(broken)} texts not whole",
        not torn and not broken,
        "regex \\X",
        {"torn": torn, "broken": broken},
    )


def _clusters(texts: list[str]) -> list[list[int]]:
    with tempfile.TemporaryDirectory() as name:
        source, target = Path(name, "in.json"), Path(name, "out.json")
        source.write_text(json.dumps(texts))
        command = [python(), script("re_graphemes.py"), str(source), str(target)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        found: list[list[int]] = json.loads(target.read_text())
    return found


def lines() -> list[Line]:
    return [Line("glyphs", "streamed text never breaks a glyph, 200-text corpus", "0 torn", measure)]
