"""YAML and JSON that are small to send and large to hold: each is refused with words, in bounded time and memory."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from colibri.bench.chaos.plan_file import read_plan
from colibri.bench.load.trace_file import read_trace
from colibri.cli.config_file import read_config
from colibri.client import recording
from colibri.cluster.ray.cluster_file import read_cluster_file
from colibri.errors import CheckpointError, ColibriError, ConfigError, InvalidInput
from colibri.models.json_file import MAX_VALUES, parse_object
from tests.support.tries import Tries

#: Bound of one refusal: it does not hang.
BOUND_S = 30.0
MEMORY_BYTES = 1 << 30


def laughs(levels: int, each: int = 9) -> str:
    lines = ["a0: &a0 [x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * each)}]" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


def merges(levels: int) -> str:
    lines = ["a0: &a0 {k: v}"]
    lines += [f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}], k{n}: *a{n - 1}}}" for n in range(1, levels)]
    return "\n".join(lines) + "\n"


YAML = {
    "a billion laughs": laughs(10),
    "the same where a text is due": laughs(10)
    + "cluster_name: *a9\nprovider: {type: *a9}\nseed: *a9\nmodel: *a9\n",
    "quadratic": "a: &a [" + "x, " * 5000 + "x]\nb: [" + "*a, " * 5000 + "*a]\n",
    "merges that double": merges(40),
    "merges of long lists": merges(12) + "b: {<<: [" + "*a11, " * 200 + "*a11]}\n",
    "a list that is in itself": "a: &a [*a]\n",
    "a section that is in itself": "a: &a {b: *a}\n",
    "two that are in each other": "a: &a {b: &b {c: *a, d: *b}}\n",
    "a chain of aliases": "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}]\n" for n in range(1, 3000)),
    "lists in lists": "a: " + "[" * 100_000,
    "sections in sections": "a: " + "{b: " * 100_000,
    "dashes": "- " * 100_000,
    "keys in keys": "? " * 100_000,
    "many values": "a: [" + "1, " * 300_000 + "1]\n",
    "many keys": "".join(f"k{n}: 1\n" for n in range(80_000)),
    "a tag that makes an object": "a: !!python/object/apply:os.system ['true']\n",
    "a tag that makes a name": "a: !!python/name:os.system\n",
    "a long number": "seed: " + "9" * 500_000 + "\n",
    "a number in base 60": "seed: " + ":".join(["59"] * 100_000) + "\n",
    "a date that is none": "seed: 2024-99-99\n",
    "no UTF-8": "a: \udcff\n",
    "nul bytes": "a: \0\n",
    "binary that is none": "seed: !!binary '" + "=" * 1000 + "'\n",
    "more than a file may have": "#" * (4 << 20),
}
#: What an option's file keeps as it is written, for the option's own type to read.
KEPT = frozenset(
    {"a tag that makes an object", "a tag that makes a name", "a date that is none", "binary that is none"}
)
READERS: dict[str, Callable[[Path], object]] = {
    "colibri.yaml": read_config,
    "chaos plan": read_plan,
    "cluster file": read_cluster_file,
}
JSON = {
    "lists in lists": b'{"a": ' + b"[" * 200_000,
    "objects in objects": b'{"a":' * 200_000,
    "empty objects": b'{"a": [' + b"{}," * (MAX_VALUES + 1) + b"{}]}",
    "empty lists": b'{"a": [' + b"[]," * (MAX_VALUES + 1) + b"[]]}",
    "numbers": b'{"a": [' + b"1," * (MAX_VALUES + 1) + b"1]}",
    "keys": b"{" + b",".join(b'"%d":1' % n for n in range(MAX_VALUES + 1)) + b"}",
    "a key twice": b'{"a": 1, "a": 2}',
    "a long number": b'{"a": ' + b"9" * 1_000_000 + b"}",
    "infinity": b'{"a": Infinity}',
    "not a number": b'{"a": NaN}',
    "a number beyond float64": b'{"a": 1e999}',
    "a number far beyond it": b'{"a": -1' + b"0" * 4000 + b".5}",
    "no UTF-8": b'{"a": "\xff"}',
    "no object": b"[" + b"0," * 1000 + b"0]",
    "nothing": b"",
    "an unfinished text": b'{"a": "' + b"x" * 1_000_000,
    "a byte order mark": b"\xef\xbb\xbf{}",
    "two documents": b"{}{}",
}
LINES = {
    "lists in lists": "[" * 200_000,
    "objects in objects": '{"a":' * 200_000,
    "a long number": "9" * 1_000_000,
    "no object": "7",
    "nothing known": '{"a": {}}',
}


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """In time, and in memory: more than a gibibyte on top is a failure and not a dead machine."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, before[1]))
    begun = time.monotonic()
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.monotonic() - begun < BOUND_S


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("bomb", YAML)
def test_yaml(tmp_path: Path, bomb: str, reader: str, tries: Tries) -> None:
    path = tmp_path / "file.yaml"
    path.write_bytes(YAML[bomb].encode("utf-8", "surrogateescape"))
    tries("YAML files", 1)
    if reader == "colibri.yaml" and bomb in KEPT:
        [entry] = read_config(path).top.entries.values()
        assert isinstance(entry.value, str) or all(isinstance(each, str) for each in entry.value)
        return
    with pytest.raises(ConfigError) as caught:
        READERS[reader](path)
    precise(caught.value)


@pytest.mark.parametrize("bomb", JSON)
def test_json(bomb: str, tries: Tries) -> None:
    tries("JSON files", 1)
    with pytest.raises(CheckpointError, match=r"^config.json: expected a JSON object") as caught:
        parse_object(JSON[bomb], "config.json")
    precise(caught.value)


@pytest.mark.parametrize("bomb", LINES)
def test_json_lines(tmp_path: Path, bomb: str, tries: Tries) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(LINES[bomb] + "\n")
    tries("JSON lines", 2)
    with pytest.raises(InvalidInput) as caught:
        list(recording.read(path))
    precise(caught.value)
    with pytest.raises(ConfigError) as caught:
        read_trace(path)
    precise(caught.value)


def precise(error: ColibriError) -> None:
    assert ": expected " in error.message
    assert ", got " in error.message
    assert len(error.message) <= 2000
