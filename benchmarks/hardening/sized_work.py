"""Work that a client sizes: 1 MiB of text, blanks or ids to every call that takes them, beside a stream."""

from __future__ import annotations

import collections
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from benchmarks.table import Line, Outcome
from colibri.grpc_options import channel_options
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.v1 import generation_pb2 as gp
from colibri.v1 import router_pb2 as rp

AT_ONCE = 16
_QUIET_S = 20.0
_WAIT_S = 120.0
#: Longer than a process for long texts lives idle.
_SETTLE_S = 40.0
_HEALTH_S = 0.2
_GAP_S = 0.2
_MEMORY_MIB = 64
_MIB = 1 << 20
_MODEL = RandomMixtral(
    hidden=128, ffn=256, layers=8, experts=8, heads=4, kv_heads=2, vocab=600, max_positions=4096, seed=5
)
_GENERATION, _ROUTER = "/colibri.v1.Generation/", "/colibri.v1.Router/"


@dataclass(frozen=True, slots=True)
class Sized:
    """A call with as much as it takes, or more."""

    name: str
    method: str
    request: Callable[[], Any]


def _chat(texts: list[str]) -> gp.Chat:
    return gp.Chat(messages=[gp.ChatMessage(role="user", content=text) for text in texts])


_FOX, _BLANKS, _A = "the quick brown fox " * 52428, " " * _MIB, "a" * _MIB
_GEN, _TOK = _GENERATION + "Generate", _GENERATION + "Tokenize"
CALLS = (
    Sized("Generate: text", _GEN, lambda: gp.GenerateRequest(text=_FOX)),
    Sized("Generate: blanks", _GEN, lambda: gp.GenerateRequest(text=_BLANKS)),
    Sized("Generate: one letter", _GEN, lambda: gp.GenerateRequest(text=_A)),
    Sized("Generate: 4 MiB of text", _GEN, lambda: gp.GenerateRequest(text="x" * (4 * _MIB - 64))),
    Sized("Generate: 900,000 ids", _GEN, lambda: _ids([5] * 900_000)),
    Sized("Generate: a chat", _GEN, lambda: gp.GenerateRequest(chat=_chat([_FOX]))),
    Sized("Generate: 16,384 messages", _GEN, lambda: gp.GenerateRequest(chat=_chat(["x" * 50] * 16_384))),
    Sized("Generate: 500,000 messages", _GEN, lambda: gp.GenerateRequest(chat=_chat([""] * 500_000))),
    Sized("Generate: 900,000 resumed ids", _GEN, lambda: _resumed(900_000)),
    Sized("Generate: 3,500 resumed ids", _GEN, lambda: _resumed(3500)),
    Sized("Generate: 3 MiB of stop strings", _GEN, lambda: _stopped(["y" * 200_000] * 16)),
    Sized("Generate: 300,000 stop strings", _GEN, lambda: _stopped(["y"] * 300_000)),
    Sized("Tokenize: text", _TOK, lambda: gp.TokenizeRequest(text=_FOX)),
    Sized("Tokenize: blanks", _TOK, lambda: gp.TokenizeRequest(text=_BLANKS)),
    Sized("Tokenize: 600 KiB", _TOK, lambda: gp.TokenizeRequest(text=_FOX[: 600 << 10])),
    Sized("Tokenize: a chat", _TOK, lambda: gp.TokenizeRequest(chat=_chat([_BLANKS[:-99]]))),
    Sized(
        "Detokenize: 900,000 ids", _GENERATION + "Detokenize", lambda: gp.DetokenizeRequest(ids=[5] * 900_000)
    ),
    Sized(
        "Detokenize: 131,072 ids", _GENERATION + "Detokenize", lambda: gp.DetokenizeRequest(ids=[5] * 131_072)
    ),
    Sized("Abort: an id of 1 MiB", _GENERATION + "Abort", lambda: gp.AbortRequest(request_id=_A)),
    Sized(
        "Forward: 2 MiB",
        _ROUTER + "Forward",
        lambda: rp.ForwardRequest(rows=4096, hidden=128, data=bytes(_MIB * 2)),
    ),
)


def _ids(ids: list[int]) -> gp.GenerateRequest:
    return gp.GenerateRequest(token_ids=gp.TokenIds(ids=ids))


def _resumed(count: int) -> gp.GenerateRequest:
    return gp.GenerateRequest(
        token_ids=gp.TokenIds(ids=[5]),
        stopping=gp.Stopping(max_tokens=3500, ignore_eos=True),
        resume=gp.Resume(generated_ids=[7] * count, receipt=1),
        sampling=gp.Sampling(seed=1),
    )


def _rows(rows: int) -> rp.ForwardRequest:
    return rp.ForwardRequest(rows=rows, hidden=_MODEL.hidden, data=bytes(rows * _MODEL.hidden * 4))


def _stopped(strings: list[str]) -> gp.GenerateRequest:
    return gp.GenerateRequest(token_ids=gp.TokenIds(ids=[5]), stopping=gp.Stopping(stop=strings))


def measure() -> Outcome:
    # Made beforehand: half a million messages of a chat take a second of a core that the server computes on.
    messages = [call.request().SerializeToString() for call in CALLS]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = _model(folder / "model")
        with _serving(model, folder) as (pid, target), _watching(target) as watched:
            time.sleep(2.0)
            _attack(target, CALLS[0], messages[0], Counter())  # what is made once is made
            before = _memory(pid)
            quiet = (time.monotonic(), time.monotonic() + _QUIET_S)
            time.sleep(_QUIET_S)
            ends: dict[str, tuple[float, float]] = {}
            answers: dict[str, dict[str, int]] = {}
            peak = before
            for call, message in zip(CALLS, messages, strict=True):
                codes: Counter[str] = Counter()
                begun = time.monotonic()
                _attack(target, call, message, codes)
                ends[call.name] = (begun, time.monotonic())
                answers[call.name] = dict(codes)
                print(
                    f"   {call.name}: {time.monotonic() - begun:.1f} s, {dict(codes)}",
                    file=sys.stderr,
                    flush=True,
                )
                peak = max(peak, _memory(pid))
            loud = (min(begun for begun, _ in ends.values()), max(end for _, end in ends.values()))
            time.sleep(_SETTLE_S)
            after = _memory(pid)
        found = watched()
    return _judge(found, quiet, loud, ends, answers, (before, peak, after))


def _judge(
    found: dict[str, list[tuple[float, float]]],
    quiet: tuple[float, float],
    loud: tuple[float, float],
    ends: dict[str, tuple[float, float]],
    answers: dict[str, dict[str, int]],
    memory: tuple[float, float, float],
) -> Outcome:
    def worst(which: str, span: tuple[float, float]) -> float:
        return max((took for at, took in found[which] if at <= span[1] and at + took >= span[0]), default=0.0)

    health, gap = worst("health", loud), worst("gaps", loud)
    health_quiet, gap_quiet = worst("health", quiet), worst("gaps", quiet)
    before, peak, after = memory
    met = (
        health <= max(_HEALTH_S, health_quiet)
        and gap <= gap_quiet + _GAP_S
        and after <= before + _MEMORY_MIB
        and bool(found["gaps"])
    )
    calls = sum(sum(codes.values()) for codes in answers.values())
    return Outcome(
        f"{calls} calls, {AT_ONCE} at once, {loud[1] - loud[0]:.0f} s: health {health * 1e3:.0f} ms, largest gap "
        f"{gap * 1e3:.0f} ms; memory {before:.0f}, {peak:.0f}, {after:.0f} MiB",
        met,
        f"quiet: health {health_quiet * 1e3:.0f} ms, largest gap {gap_quiet * 1e3:.0f} ms",
        {
            "answers": answers,
            "worst": {name: [worst("health", span), worst("gaps", span)] for name, span in ends.items()},
            "seconds": {name: end - begun for name, (begun, end) in ends.items()},
        },
    )


def _model(folder: Path) -> Path:
    """With one token that stands for 300 bytes: no text of 1 MiB is refused by its length alone."""
    random_mixtral(folder, _MODEL)
    path = folder / "tokenizer.json"
    raw = json.loads(path.read_text())
    vocabulary = raw["model"]["vocab"]
    last = max(vocabulary, key=vocabulary.__getitem__)
    vocabulary["w" * 300] = vocabulary.pop(last)
    path.write_text(json.dumps(raw))
    (folder / "chat_template.jinja").write_text(
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    )
    return folder


@contextlib.contextmanager
def _serving(model: Path, folder: Path) -> Iterator[tuple[int, str]]:
    command = [sys.executable, "-m", "colibri.cli.main", "serve", str(model), "--json", "--workers=1"]
    with open(folder / "serve.err", "w") as log:
        process = subprocess.Popen(
            [*command, "--listen=127.0.0.1:0", "--share-cpus", "--kv-tokens=65536"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        if process.stdout is None:
            raise RuntimeError("no output")
        line = process.stdout.readline()
        if not line:
            raise RuntimeError((folder / "serve.err").read_text())
        yield process.pid, json.loads(line)["target"]
    finally:
        process.terminate()
        process.wait(60)


@contextlib.contextmanager
def _watching(target: str) -> Iterator[Callable[[], dict[str, list[tuple[float, float]]]]]:
    """Gives what ends the watcher and says what it saw."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hardening.watcher", target],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, list[tuple[float, float]]] = {}
    try:
        if process.stdout is None or not process.stdout.readline():
            raise RuntimeError("the watcher did not start")
        yield lambda: found
        out, _ = process.communicate("", timeout=_WAIT_S)
        found.update(json.loads(out))
    finally:
        process.kill()
        process.wait(30)


def _attack(target: str, call: Sized, data: Any, codes: Counter[str]) -> None:
    """Makes the call with the bytes of its message, AT_ONCE at once, over as many connections."""

    def one(_: int) -> str:
        with grpc.insecure_channel(target, options=channel_options()) as channel:
            try:
                if call.method == _GEN:
                    stream: Any = channel.unary_stream(call.method, None, None)
                    collections.deque(stream(data, timeout=_WAIT_S), maxlen=0)
                else:
                    channel.unary_unary(call.method, None, None)(data, timeout=_WAIT_S)
            except grpc.RpcError as error:
                return str(error.code().name)
        return "OK"

    with ThreadPoolExecutor(AT_ONCE) as pool:
        codes.update(pool.map(one, range(AT_ONCE)))


def _memory(pid: int) -> float:
    """MiB of the server and its children, shared pages divided."""
    children = Path(f"/proc/{pid}/task").glob("*/children")
    pids = [pid, *(int(child) for file in children for child in file.read_text().split())]
    total = 0
    for each in pids:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


def lines() -> list[Line]:
    return [
        Line(
            "sized-work",
            "1 MiB of text, blanks or ids to every call that takes them, 16 at once, beside a stream",
            "health at most 0.2 s, largest gap at most quiet + 0.2 s, memory back",
            measure,
        )
    ]
