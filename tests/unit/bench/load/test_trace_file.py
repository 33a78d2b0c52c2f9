from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from colibri.bench.load.arrivals import OpenLoop
from colibri.bench.load.trace_file import TraceEntry, read_trace, trace_arrivals, trace_shape
from colibri.errors import ConfigError

LINE = {"timestamp": 27000, "input_length": 10, "output_length": 3}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_times_count_from_the_first_line(tmp_path: Path) -> None:
    later = {"timestamp": 28500, "input_length": 20, "output_length": 4, "hash_ids": [1, 2]}
    entries = read_trace(write(tmp_path, LINE, "\n", later))
    assert entries == (TraceEntry(0.0, 10, 3), TraceEntry(1.5, 20, 4))
    assert trace_arrivals(entries) == OpenLoop((0.0, 1.5))
    assert trace_arrivals(entries, speed=3.0) == OpenLoop((0.0, 0.5))
    shape, rng = trace_shape(entries), np.random.default_rng(0)
    assert [shape(i, rng) for i in range(3)] == [(10, 3), (20, 4), (10, 3)]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "at least one request"),
        (("{",), r"trace.jsonl:1: expected a JSON object"),
        (([1],), r"trace.jsonl:1: expected a JSON object"),
        ((LINE, LINE | {"timestamp": 26999}), r"trace.jsonl:2: timestamp: expected no earlier"),
        ((LINE | {"timestamp": "1"},), r"trace.jsonl:1: timestamp"),
        ((LINE | {"timestamp": float("nan")},), r"trace.jsonl:1: timestamp"),
        ((LINE | {"input_length": 0},), r"trace.jsonl:1: input_length"),
        ((LINE | {"output_length": 1.5},), r"trace.jsonl:1: output_length"),
        ((LINE | {"output_length": True},), r"trace.jsonl:1: output_length"),
        ((LINE | {"input_length": 1 << 40},), r"trace.jsonl:1: input_length"),
    ],
)
def test_refused(tmp_path: Path, lines: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(write(tmp_path, *lines))


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a readable"):
        read_trace(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="expected a readable"):
        read_trace(tmp_path / "bytes")


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf")])
def test_speed_refused(speed: float) -> None:
    with pytest.raises(ConfigError):
        trace_arrivals((TraceEntry(0.0, 1, 1),), speed)
