"""The lines of `make reach TOPIC=cuda`: what is proven without a GPU, and what needs one."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.table import Line, Outcome
from colibri.kernels.cuda.compiler import compile_cubin
from colibri.kernels.cuda.cupy_device import import_cupy, require_driver
from colibri.kernels.cuda.device import DeviceError
from colibri.kernels.cuda.sources import ARCHITECTURES, modules
from tests.support.cuda.bounds import resource_bounds
from tests.support.cuda.build import library_of
from tests.support.cuda.cubin import read_resources
from tests.support.cuda.mutants import try_all
from tests.support.cuda.probes import SCHEDULES, probe

ROOT = Path(__file__).resolve().parents[2]
_PROBE_ROUNDS = 3
_GPU_LIMIT_S = 900.0


def compiled() -> Outcome:
    """By NVRTC, warnings being errors, read out of the cubins."""
    total, wrong = 0, []
    spills = {}
    for module in modules():
        for architecture in ARCHITECTURES:
            if architecture < module.least:
                continue
            for kernel, found in read_resources(compile_cubin(module, architecture, None)).items():
                total += 1
                bounds = resource_bounds(kernel)
                if (
                    found.registers > bounds.registers
                    or found.stack > bounds.stack
                    or found.shared > bounds.shared
                ):
                    wrong.append(f"{kernel} sm_{architecture}: {found}")
                if found.stack:
                    spills[f"{kernel} sm_{architecture}"] = found.stack
    return Outcome(
        f"{total - len(wrong)} of {total} kernels x architectures",
        not wrong,
        f"sm_{', '.join(map(str, ARCHITECTURES))}; tensor cores from sm_80",
        {"wrong": wrong, "stack bytes": spills},
    )


def emulated() -> Outcome:
    """Every kernel on a CPU under every schedule, fresh inputs each time."""
    done, wrong = 0, []
    for _ in range(_PROBE_ROUNDS):
        for module in modules():
            done += len(SCHEDULES)
            try:
                probe(module.name, library_of)
            except AssertionError as error:
                wrong.append(f"{module.name}: {error}")
    return Outcome(f"{done - len(wrong)} of {done} modules x schedules", not wrong, "", {"wrong": wrong})


def mutants() -> Outcome:
    """Each barrier and wait deleted, guards too, comparisons, bounds and indices off by one. A run that was cut off
    goes on where it stopped."""
    begin = time.monotonic()
    tried = try_all(lambda line: print(f"   {line}", file=sys.stderr, flush=True))
    return Outcome(
        f"{tried.caught} of {tried.caught + len(tried.missed)} caught",
        not tried.missed,
        f"{time.monotonic() - begin:.0f} s; beside them {tried.equivalent} that nothing could show (equivalent.py), "
        f"{tried.not_compiled} that do not compile",
        {"missed": list(tried.missed)},
    )


def on_gpu(judge: Callable[[dict[str, dict[str, Any]]], Outcome]) -> Outcome:
    """`judge` of gpu-check's lines; without a GPU the line is waived, and says so."""
    try:
        cupy = import_cupy()
        require_driver(cupy)
    except DeviceError as error:
        return Outcome("not measured", True, str(error)[:80], waived="no GPU")
    return judge(_gpu_lines())


@cache
def _gpu_lines() -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "lines.json"
        script = ROOT / "benchmarks" / "cuda" / "gpu_check.py"
        command = [sys.executable, str(script), "--quick", "--full", "--json", str(path)]
        subprocess.run(command, check=False, timeout=_GPU_LIMIT_S, stdout=sys.stderr)
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    return {row["name"]: row for row in rows}


def _checks(lines: dict[str, dict[str, Any]]) -> Outcome:
    found = [row["ok"] for row in lines.values() if row["ok"] is not None]
    return Outcome(f"{sum(found)} of {len(found)} right", bool(found) and all(found))


def _decode(lines: dict[str, dict[str, Any]]) -> Outcome:
    share = lines["FFN bf16, 1 rows"]["bytes_per_s"] / lines["copy on the device"]["bytes_per_s"]
    return Outcome(f"{share:.0%} of copy bandwidth", share >= 0.8, lines["copy on the device"]["value"])


def _prefill(lines: dict[str, dict[str, Any]]) -> Outcome:
    peak = lines["torch.matmul, bf16, 8192 cubed"]
    share = lines["FFN bf16, 4096 rows"]["flops_per_s"] / peak["flops_per_s"]
    newer = int(lines["device"]["value"].rsplit("sm", 1)[1]) >= 90
    return Outcome(f"{share:.0%} of matmul", share >= (0.45 if newer else 0.65), peak["value"])


def _against_torch(lines: dict[str, dict[str, Any]]) -> Outcome:
    ratios = {
        rows: lines[f"torch FFN, bf16, {rows} rows"]["seconds"] / lines[f"FFN bf16, {rows} rows"]["seconds"]
        for rows in (1, 8, 64)
    }
    return Outcome(
        ", ".join(f"{rows} rows {r:.2f}x" for rows, r in ratios.items()), min(ratios.values()) >= 1.3
    )


def _copies(lines: dict[str, dict[str, Any]]) -> Outcome:
    share = (
        lines["weights through the ring"]["bytes_per_s"]
        / lines["plain pinned copy to the device"]["bytes_per_s"]
    )
    return Outcome(f"{share:.0%} of a plain pinned copy", share >= 0.94)


def _gate(lines: dict[str, dict[str, Any]]) -> Outcome:
    seconds = lines["gate and grouping, 4096 rows"]["seconds"]
    return Outcome(f"{seconds * 1e6:.0f} us", seconds <= 20e-6)


def lines() -> list[Line]:
    def gpu(name: str, what: str, target: str, judge: Callable[[dict[str, dict[str, Any]]], Outcome]) -> Line:
        return Line(name, what, target, partial(on_gpu, judge))

    return [
        Line("compiled", "kernels x architectures compiled, resource bounds held", "all", compiled),
        Line(
            "emulated",
            "kernels emulated against float64 and the CPU backend, rows alone",
            "all equal",
            emulated,
        ),
        Line("mutants", "faults put into the sources", "all caught", mutants),
        gpu("gpu-checks", "every kernel on the GPU, invariance, a generation", "all right", _checks),
        gpu("gpu-decode", "decode FFN, 1 row, Mixtral-8x7B", "at least 80 % of copy bandwidth", _decode),
        gpu("gpu-prefill", "prefill FFN, bf16", "at least 65 % of matmul, 45 % from sm_90", _prefill),
        gpu("gpu-torch", "FFN of at most 64 rows", "at least 1.3x torch", _against_torch),
        gpu("gpu-copy", "weights through pinned memory", "at least 94 % of a plain pinned copy", _copies),
        gpu("gpu-gate", "gate and grouping, 4096 rows", "at most 20 us", _gate),
    ]
