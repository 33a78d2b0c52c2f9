"""`python -m benchmarks.router_overhead [--rows N] [--workers N] [--transport tcp|unix] [--json]`: what the
router itself costs per layer.

Worker processes compute nothing, so what is left is overhead: gate, plan, write (rows gathered, headers,
checksums, queues), wait (hop there and back, read and checked on both ends), merge. Prints means in
microseconds per layer; then the plan alone for several batch sizes, in plain Python and in NumPy.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

EXPERTS, TOP_K, MODE = 8, 2, "bf16"
PLAN_ROWS = (1, 8, 32, 64, 512)


def serve(name: str, listen: str, model: str) -> None:
    """A worker as it is, but for what computes: zeros at once."""
    import numpy as np

    from colibri.expert_service.assembly import WorkerServer
    from colibri.expert_service.config import WorkerConfig
    from colibri.kernels.api import F32, U32, Array, UnitBatch

    def nothing(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        units = len(batch.unit_slots)
        return np.zeros((units, x.shape[1]), np.float32), np.zeros(units, np.uint32)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    server = WorkerServer(WorkerConfig(Path(model), name, listen, MODE, backend="reference"), run=nothing)
    server.start()
    print(json.dumps({"target": server.target}), flush=True)
    signal.sigwait({signal.SIGTERM})
    server.stop(1.0)


def start_worker(stack: ExitStack, name: str, listen: str, model: Path) -> str:
    """Returns its address; it ends with the stack."""
    command = [sys.executable, "-m", "benchmarks.router_overhead", "--serve", name, listen, str(model)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    stack.callback(child.wait, 10)
    stack.callback(child.send_signal, signal.SIGTERM)
    if child.stdout is None:
        raise RuntimeError("a child without output")
    return str(json.loads(child.stdout.readline())["target"])


def measure_layer(rows: int, workers: int, transport: str, hidden: int, calls: int) -> dict[str, float]:
    """Means in microseconds per layer."""
    import numpy as np

    from colibri.kernels.api import ComputeMode
    from colibri.kernels.factory import make_backend
    from colibri.models.checkpoint import Checkpoint
    from colibri.models.random_mixtral import RandomMixtral, random_mixtral
    from colibri.numerics import ExpertNumerics
    from colibri.placement import Directory, Membership, WorkerEndpoint, spread
    from colibri.router_service.handshake import RouterIdentity
    from colibri.router_service.remote import RemoteExecutor
    from colibri.router_service.router import MoeRouter
    from colibri.router_service.stats import minus
    from colibri.wire.limits import FrameLimits

    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="colibri-router-")))
        params = RandomMixtral(
            hidden=hidden, ffn=16, layers=1, experts=EXPERTS, top_k=TOP_K, heads=4, kv_heads=1, vocab=300
        )
        model = random_mixtral(folder / "model", params)
        placement = spread(1, EXPERTS, [f"w{index}" for index in range(workers)])
        endpoints = {}
        for name in placement.workers:
            listen = f"unix:{folder}/{name}" if transport == "unix" else "127.0.0.1:0"
            endpoints[name] = WorkerEndpoint(name, 1, start_worker(stack, name, listen, model))
        directory = Directory(Membership(placement, endpoints))

        checkpoint = Checkpoint.open(model)
        backend = make_backend("cpu", threads=1)
        stack.callback(backend.close)
        mode = ComputeMode(MODE)
        numerics = ExpertNumerics.of("reference", MODE, checkpoint.config.dtype)
        executor = RemoteExecutor(
            RouterIdentity("overhead", checkpoint.model_hash(), numerics.id),
            FrameLimits(1, EXPERTS, TOP_K, hidden, MODE),
            directory,
        )
        stack.callback(executor.close)
        for error in executor.connect().values():
            raise error
        router = MoeRouter(
            backend, mode, [backend.pack_linear(checkpoint.gate(0), mode)], TOP_K, directory, executor
        )
        # Exponents around 1: ordinary rows.
        x = np.random.default_rng(0).integers(0x3E00, 0x4000, (64, rows, hidden)).astype(np.uint16)
        for index in range(calls // 4):
            router.forward(0, x[index % 64])
        before, before_exchange = router.times(), executor.times()
        begin = time.perf_counter()
        for index in range(calls):
            if router.forward(0, x[index % 64]).failed:
                raise RuntimeError("a row failed")
        total = time.perf_counter() - begin
        times, exchange = minus(router.times(), before), minus(executor.times(), before_exchange)
        seconds = {
            "gate": times.gate_s,
            "plan": times.plan_s,
            "write": exchange.write_s,
            "wait": exchange.wait_s,
            "merge": times.merge_s,
            "rest": total - times.gate_s - times.plan_s - times.exchange_s - times.merge_s,
            "total": total,
            "worker queue": exchange.worker_queue_s / workers,
            "worker compute": exchange.worker_compute_s / workers,
        }
        return {name: value / calls * 1e6 for name, value in seconds.items()} | {
            "messages": exchange.messages / calls
        }


def measure_plans(workers: int) -> dict[int, dict[str, float]]:
    """rows -> microseconds of the plan as made, in plain Python, and in NumPy (best of 5 means)."""
    import numpy as np

    from colibri.kernels.api import GateResult
    from colibri.router_service.plan import OwnerTable, plan_rows
    from colibri.router_service.plan_large import plan_large
    from colibri.router_service.plan_small import plan_small

    draw = np.random.default_rng(0)
    table = OwnerTable.of((np.arange(EXPERTS) % workers).astype(np.uint32), workers)
    result: dict[int, dict[str, float]] = {}
    for rows in PLAN_ROWS:
        experts = np.argsort(draw.random((rows, EXPERTS)), axis=1)[:, :TOP_K].astype(np.uint16)
        gate = GateResult(experts, draw.random((rows, TOP_K), dtype=np.float32), np.ones(rows, np.bool_))
        calls = max(20, 2000 // rows)
        result[rows] = {}
        for name, make in (
            ("plan", plan_rows),
            ("python", partial(plan_small, line=0)),
            ("numpy", partial(plan_large, line=0)),
        ):
            best = float("inf")
            for _ in range(5):
                begin = time.perf_counter()
                for _ in range(calls):
                    make(gate, table)
                best = min(best, (time.perf_counter() - begin) / calls)
            result[rows][name] = best * 1e6
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.router_overhead", description=__doc__)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--transport", choices=("tcp", "unix"), default="unix")
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", nargs=3, metavar=("NAME", "LISTEN", "MODEL"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(*args.serve)
        return 0
    layer = measure_layer(args.rows, args.workers, args.transport, args.hidden, args.calls)
    plans = measure_plans(args.workers)
    if args.json:
        print(json.dumps({"layer_us": layer, "plan_us": plans}))
        return 0
    shape = f"{args.rows} row(s) of {args.hidden}, {args.workers} worker(s), {args.transport}"
    print(f"{shape}, {args.calls} layers, {os.cpu_count()} CPUs")
    for name, value in layer.items():
        print(f"{name:15} {value:8.1f}{'' if name == 'messages' else ' us'}")
    for rows, row in plans.items():
        print(f"plan of {rows:4} rows {_columns(row)}")
    return 0


def _columns(row: dict[str, Any]) -> str:
    return "  ".join(f"{name} {value:7.1f} us" for name, value in row.items())


if __name__ == "__main__":
    raise SystemExit(main())
