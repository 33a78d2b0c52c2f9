"""Runs in .venv-peers: where grapheme clusters end, by the `regex` package. `re_graphemes.py IN.json OUT.json`

IN: texts; OUT: for each the ascending ends of its extended grapheme clusters (UAX #29), in code points.
"""

from __future__ import annotations

import json
import sys
from itertools import accumulate
from pathlib import Path

import regex


def main() -> None:
    source, target = map(Path, sys.argv[1:3])
    texts = json.loads(source.read_text())
    target.write_text(json.dumps([list(accumulate(map(len, regex.findall(r"\X", text)))) for text in texts]))


main()
