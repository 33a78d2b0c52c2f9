"""Checks and times the CUDA backend on a bare GPU machine: `python benchmarks/cuda/gpu_check.py --quick --full`.

Runs from source, without an installation, built protos or a network: Python 3.11 or newer, NumPy, CuPy for CUDA 12 or
13; torch and Triton where they are to be compared with. --quick (3 minutes): every kernel against the reference with
fresh inputs and poisoned memory, batch invariance, one generation through one worker and two. --full (6 minutes):
ceilings, and the FFN of Mixtral-8x7B against them, torch and Triton. One JSON line for each result in --json, written
at once; a table last.

Exit 0: all checks right (timings do not decide); 1: not; 2: no GPU that can be used."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

from benchmarks.cuda.source_tree import use_source_tree  # noqa: E402

use_source_tree()

import numpy as np  # noqa: E402

from benchmarks.cuda.checks import CHECKS  # noqa: E402
from colibri.kernels.cuda.backend import CudaBackend  # noqa: E402
from colibri.kernels.cuda.device import DeviceError  # noqa: E402

#: Seconds that each part may take; what has not begun by then is said to be left out.
QUICK_S, FULL_S = 180.0, 360.0
_ROUNDS = 3


class Results:
    """What was found, in order: a JSON line for each at once, a table at the end."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.rows: list[dict[str, Any]] = []
        if path is not None:
            path.write_text("")

    def add(self, name: str, ok: bool | None, value: str, **detail: Any) -> None:
        """ok: None for what is neither right nor wrong."""
        row = {"name": name, "ok": ok, "value": value, **detail}
        self.rows.append(row)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        print(f"{_word(ok):5} {name}: {value}", flush=True)

    def table(self) -> Iterator[str]:
        wide = max((len(row["name"]) for row in self.rows), default=0)
        for row in self.rows:
            yield f"{_word(row['ok']):5} {row['name']:{wide}}  {row['value']}"


def quick(backend: CudaBackend, results: Results, limit_s: float, clock: Callable[[], float]) -> bool:
    """Every check, in rounds with fresh inputs while time is left. Whether all were right."""
    begin, right = clock(), True
    for number in range(_ROUNDS):
        for name, check in CHECKS.items():
            if clock() - begin > limit_s:
                results.add(f"{name}, round {number + 1}", None, "left out: no time")
                continue
            seed = secrets.randbits(32)
            start = clock()
            try:
                check(backend, np.random.default_rng(seed))
                results.add(f"{name}, round {number + 1}", True, f"{clock() - start:.1f} s", seed=seed)
            except Exception as error:  # whatever a kernel or the driver says: the next line follows
                right = False
                results.add(
                    f"{name}, round {number + 1}", False, f"{type(error).__name__}: {error}"[:400], seed=seed
                )
    return right


def open_backend(index: int) -> CudaBackend:
    """Memory that kernels get is filled with NaN first."""
    from colibri.kernels.cuda.cupy_device import CupyDevice

    class Poisoned(CupyDevice):
        def empty(self, nbytes: int) -> Any:
            buffer = super().empty(nbytes)
            if nbytes:
                self.fill(buffer, 0xFF)
            return buffer

    device = Poisoned(index, memory_bytes=None, pinned_bytes=256 << 20, cache=ROOT / "build" / "cuda_cubins")
    return CudaBackend(device, weight_bytes=device.memory.limit // 4, dma_buffer_size=256 << 20)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="checks (the default)")
    parser.add_argument(
        "--full", action="store_true", help="timings, after the checks where both are asked for"
    )
    parser.add_argument("--device", type=int, default=0, metavar="N")
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    args = parser.parse_args()
    results = Results(args.json)
    try:
        backend = open_backend(args.device)
    except DeviceError as error:
        results.add("device", False, str(error))
        return 2
    results.add("device", None, f"cuda:{args.device}, {backend.isa}")
    right = True
    if args.quick or not args.full:
        right = quick(backend, results, QUICK_S, time.monotonic)
    try:
        backend.close()
    except DeviceError as error:
        results.add("closing the device", False, str(error)[:400])
        right = False
    if args.full:
        from benchmarks.cuda.timings import full

        full(args.device, results, FULL_S)
    print("\n" + "\n".join(results.table()))
    return 0 if right else 1


def _word(ok: bool | None) -> str:
    return "-" if ok is None else "right" if ok else "WRONG"


if __name__ == "__main__":
    raise SystemExit(main())
