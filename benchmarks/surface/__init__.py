"""The Reach table of what users touch: requests, log-probabilities, resume, tokenizer, clients, help, bad input."""

from __future__ import annotations

import importlib

from benchmarks.table import Line

#: In the order of the table; each module has `lines() -> list[Line]`.
_PARTS = ("tokens", "glyphs", "sampling", "logprobs", "resume", "remote_moe", "help", "bad_inputs")


def lines() -> list[Line]:
    """All lines of `make reach TOPIC=surface`."""
    return [line for part in _PARTS for line in importlib.import_module(f"{__name__}.{part}").lines()]
