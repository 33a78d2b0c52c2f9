"""What no shipped file may do, whatever it is fed: read programs as data, check by `assert`, run a shell, reach out."""

from __future__ import annotations

import ast
import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.internal import api_implementation
from google.protobuf.message import DecodeError

from colibri.errors import CheckpointError, FrameError
from colibri.models.json_file import parse_object
from colibri.v1 import expert_pb2, generation_pb2
from colibri.wire.frame import read_frame
from tests.support.tries import Tries

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("src/colibri", "kernels", "models", "router_service", "expert_service", "coordinator", "cluster")
FILES = sorted(file for folder in SHIPPED for file in (ROOT / folder).rglob("*.py"))
#: Modules whose data are programs.
MODULES = frozenset(
    ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "pty", "telnetlib")
)
#: Calls by the last name, or by the last two.
CALLS = frozenset(
    ("eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load", "torch.load", "mktemp")
)


def found(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(), str(file))):
        where = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Assert):
            yield f"{where}: assert, which `python -O` leaves out"
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            )
            yield from (f"{where}: import {name}" for name in names if name.partition(".")[0] in MODULES)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            short = ".".join(name.split(".")[-2:])
            if short in CALLS or ("." not in name and name in CALLS) or short.split(".")[-1] == "mktemp":
                yield f"{where}: {name}()"
            for keyword in node.keywords:
                value = keyword.value.value if isinstance(keyword.value, ast.Constant) else None
                if (keyword.arg, value) in (
                    ("shell", True),
                    ("allow_pickle", True),
                    ("trust_remote_code", True),
                ):
                    yield f"{where}: {name}({keyword.arg}=True)"


@pytest.mark.parametrize(
    "line",
    [
        "assert token.isascii()",
        "import pickle",
        "from cloudpickle import loads",
        "eval(text)",
        "yaml.load(text)",
        "subprocess.run(x, shell=True)",
        "numpy.load(x, allow_pickle=True)",
        "tempfile.mktemp()",
        "os.system(x)",
    ],
)
def test_each_kind_would_be_found(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text(f"def f():\n    {line}\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert len(list(found(tmp_path / "a.py"))) == 1


def test_no_shipped_file_does(tries: Tries) -> None:
    assert len(FILES) > 300
    assert [each for file in FILES for each in found(file)] == []
    tries("shipped files searched for programs as data", len(FILES))


#: Security decisions of every kind, in a process where assert statements are gone.
OPTIMISED = """
import tempfile, os
from pathlib import Path
from colibri.errors import ColibriError
from colibri.security.bind import checked_bind
from colibri.security.secret_file import read_file
from colibri.address import parse_address
from colibri.wire.frame import read_frame
from colibri.wire.limits import FrameLimits
from colibri.wire.units import check_forward
from colibri.wire.header import Header
from colibri.models.shards import open_weights
assert False, "python -O"
def open_folder():
    folder = Path(tempfile.mkdtemp())
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    open_weights(folder)
def loose_key():
    file = Path(tempfile.mkdtemp()) / "key"
    file.write_text("secret")
    os.chmod(file, 0o644)
    read_file(file, "--tls-key", secret=True)
limits = FrameLimits(layers=2, experts=4, top_k=2, hidden=32, compute_mode="bf16")
for refused in (
    lambda: checked_bind(parse_address("0.0.0.0:1"), "listen", tls=False, callers_known=False, insecure=False),
    lambda: checked_bind(parse_address("[::]:1"), "listen", tls=True, callers_known=False, insecure=False),
    lambda: read_frame(b"\\xff" * 40),
    lambda: check_forward(Header(rows=1 << 31, hidden=32, units=1 << 31), limits),
    open_folder,
    loose_key,
):
    try:
        refused()
    except ColibriError as error:
        print(type(error).__name__)
    else:
        print("TAKEN")
"""


def test_checks_hold_without_assert_statements(tries: Tries) -> None:
    done = subprocess.run(
        [sys.executable, "-O", "-c", OPTIMISED], capture_output=True, text=True, timeout=60, check=False
    )
    said = done.stdout.split()
    assert len(said) == 6, done.stdout + done.stderr
    assert "TAKEN" not in said
    tries("checks under python -O", len(said))


def test_protobuf_is_not_the_pure_python_one(tries: Tries) -> None:
    """Its recursion has no bound of its own (CVE-2025-4565)."""
    assert api_implementation.Type() in ("upb", "cpp")
    script = "from colibri.rpc.server import build_server; build_server([], listen='127.0.0.1:0')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python", "PATH": "/usr/bin:/bin"},
    )
    assert done.returncode
    assert "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION" in done.stderr, done.stderr[-500:]
    tries("protobuf without bounds", 1)


def nested(field: int, depth: int) -> bytes:
    """A group or message of that field in itself, `depth` times, lengths right."""
    data = b""
    for _ in range(depth):
        size, head = len(data), b""
        while size > 127:
            head += bytes((size & 127 | 128,))
            size >>= 7
        data = bytes((field << 3 | 2,)) + head + bytes((size,)) + data
    return data


def test_nested_messages_end_at_a_bound(tries: Tries) -> None:
    count = 0
    for depth in (50, 101, 1000, 20_000):
        for field in (1, 2, 3, 6, 8, 15):
            groups = bytes((field << 3 | 3,)) * depth
            for data in (nested(field, depth), groups, groups + bytes((field << 3 | 4,)) * depth):
                count += 2
                for read in (generation_pb2.GenerateRequest.FromString, expert_pb2.Frame.FromString):
                    with contextlib.suppress(DecodeError):
                        read(data)
                with contextlib.suppress(FrameError):
                    read_frame(data)
    tries("messages nested in themselves", count)


@pytest.mark.parametrize("opened", ["[", '{"a":', '[{"a":'])
def test_nested_json_ends_at_a_bound(opened: str, tries: Tries) -> None:
    for depth in (1000, 10_000, 300_000):
        with pytest.raises(CheckpointError):
            parse_object(b'{"a":' + opened.encode() * depth, "config.json")
    for number in (b"9" * 5000, b"1e999999999", b"-" * 10, b"NaN", b"Infinity"):
        with pytest.raises(CheckpointError):
            parse_object(b'{"a":' + number + b"}", "config.json")
    tries("JSON too deep or too large", 8)
