"""The Reach table of what users touch: requests, log-probabilities, resume, tokenizer, clients, help, bad input."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

from benchmarks.table import Line

#: In the order of the table; each module has `lines() -> list[Line]`.
_PARTS = ("tokens", "glyphs", "sampling", "logprobs", "resume", "remote_moe", "help", "bad_inputs")


def lines() -> list[Line]:
    """All lines of `make reach TOPIC=surface`."""
    names = [f"{__name__}.{part}" for part in _PARTS]
    return [
        line
        for name in names
        if find_spec(name) is not None
        for line in importlib.import_module(name).lines()
    ]
