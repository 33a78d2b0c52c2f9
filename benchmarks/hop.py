"""`python -m benchmarks.hop [--transport tcp|unix] [--rows N] [--rounds N] [--json]`: what a hop to a worker costs.

Arms, alternated in one run: `echo`, a bare Python gRPC stream that answers with as many bytes; `link`, the same bytes
as frames through a worker that computes nothing, written, read and checked on both ends; `executor`, the router's
RemoteExecutor on top; `shared`, that executor over shared memory. Worker and echo server are processes of their own.
Prints medians in microseconds and the ratio of each arm to `echo`.
"""

from __future__ import annotations

import argparse
import atexit
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from colibri.security.channel import ChannelSecurity

HIDDEN, LAYERS, EXPERTS, TOP_K = 4096, 1, 8, 2
MODE = "bf16"


def serve_echo(listen: str, reply_bytes: int, certificates: str = "") -> None:
    """The bare stream: nothing but grpc's own example of a bidirectional one, on bytes. certificates: as of
    serve_worker."""
    import grpc

    from colibri.grpc_options import server_options

    reply = bytes(reply_bytes)

    def echo(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for _ in requests:
            yield reply

    server = grpc.server(ThreadPoolExecutor(4), options=server_options(64 << 20))
    handler: Any = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Echo", {"Echo": handler}),))
    if certificates:
        folder = Path(certificates)
        pair = [((folder / "worker.key").read_bytes(), (folder / "worker.pem").read_bytes())]
        credentials = grpc.ssl_server_credentials(pair, (folder / "ca.pem").read_bytes(), True)
        port = server.add_secure_port(listen, credentials)
    else:
        port = server.add_insecure_port(listen)
    server.start()
    target = listen if listen.startswith("unix:") else f"127.0.0.1:{port}"
    print(json.dumps({"target": target}), flush=True)
    signal.sigwait({signal.SIGTERM})


def serve_worker(listen: str, model: str, certificates: str = "") -> None:
    """A worker as it is, but for what computes: zeros at once. certificates: folder of its worker.pem, worker.key and
    ca.pem, with which it demands routers' certificates; empty: in clear."""
    import numpy as np

    from colibri.expert_service.assembly import WorkerServer
    from colibri.expert_service.config import WorkerConfig
    from colibri.kernels.api import F32, U32, Array, UnitBatch
    from colibri.security.server import ServerSecurity

    def nothing(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
        units = len(batch.unit_slots)
        return np.zeros((units, x.shape[1]), np.float32), np.zeros(units, np.uint32)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    folder = Path(certificates)
    security = (
        ServerSecurity(folder / "worker.pem", folder / "worker.key", folder / "ca.pem")
        if certificates
        else ServerSecurity()
    )
    config = WorkerConfig(Path(model), "w0", listen, MODE, backend="reference", security=security)
    server = WorkerServer(config, run=nothing)
    server.start()
    print(json.dumps({"target": server.target}), flush=True)
    signal.sigwait({signal.SIGTERM})
    server.stop(1.0)


def measure(rows: int, transport: str, rounds: int, calls: int) -> dict[str, list[float]]:
    """Round trip times in seconds by arm."""
    with tempfile.TemporaryDirectory(prefix="colibri-hop-") as folder:
        model = make_model(Path(folder, "model"))
        children: list[subprocess.Popen[str]] = []
        try:
            unix = transport == "unix"
            worker = start_child(
                children, "worker", f"unix:{folder}/worker.sock" if unix else "127.0.0.1:0", str(model)
            )
            arms = router_arms(worker, model, rows)
            request, reply = arms.pop("sizes")
            echo = start_child(
                children, "echo", f"unix:{folder}/echo.sock" if unix else "127.0.0.1:0", str(reply)
            )
            arms = {"echo": echo_arm(echo, request), **arms}
            return alternate(arms, rounds, calls)
        finally:
            end_children(children)


def make_model(folder: Path) -> Path:
    """A checkpoint whose rows are as wide as Mixtral's."""
    from colibri.models.random_mixtral import RandomMixtral, random_mixtral

    shapes = RandomMixtral(
        hidden=HIDDEN, ffn=16, layers=LAYERS, experts=EXPERTS, top_k=TOP_K, heads=4, kv_heads=1, vocab=300
    )
    return random_mixtral(folder, shapes)


def end_children(children: list[subprocess.Popen[str]]) -> None:
    for child in children:
        child.send_signal(signal.SIGTERM)
    for child in children:
        child.wait(10)


def start_child(
    children: list[subprocess.Popen[str]], role: str, listen: str, argument: str, certificates: str = ""
) -> str:
    """Its address. It is added to `children`."""
    command = [sys.executable, "-m", "benchmarks.hop", "--serve", role, listen, argument, certificates]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    children.append(child)
    if child.stdout is None:
        raise RuntimeError("a child without output")
    return str(json.loads(child.stdout.readline())["target"])


def echo_arm(target: str, size: int, security: ChannelSecurity | None = None) -> Callable[[], object]:
    from colibri.grpc_options import channel_options
    from colibri.security.channel import PLAIN

    channel = (security or PLAIN).open(target, channel_options(64 << 20))
    outbox: SimpleQueue[bytes] = SimpleQueue()
    echo: Any = channel.stream_stream("/bench.Echo/Echo")
    stream = echo(iter(outbox.get, None))
    message = bytes(size)

    def call() -> object:
        outbox.put(message)
        return next(stream)

    return call


def router_arms(
    target: str, model: Path, rows: int, security: ChannelSecurity | None = None
) -> dict[str, Any]:
    """A call of each arm that goes through a worker, and under `sizes` the bytes of its request and reply. security: of
    the channels to the worker."""
    import numpy as np

    from colibri.deadline import Deadline
    from colibri.kernels.api import GateResult
    from colibri.models.checkpoint import Checkpoint
    from colibri.numerics import ExpertNumerics
    from colibri.placement import Directory, Membership, WorkerEndpoint, spread
    from colibri.router_service.handshake import RouterIdentity
    from colibri.router_service.plan import plan_layer
    from colibri.router_service.remote import RemoteExecutor
    from colibri.security.channel import PLAIN
    from colibri.transport.grpc_stream import GrpcStreamLink, open_channel
    from colibri.transport.link import LinkKind
    from colibri.v1 import expert_pb2
    from colibri.wire.chunks import message_frames
    from colibri.wire.frame import read_frame, verify
    from colibri.wire.header import Header
    from colibri.wire.limits import FrameLimits
    from colibri.wire.units import check_result

    draw = np.random.default_rng(0)
    limits = FrameLimits(LAYERS, EXPERTS, TOP_K, HIDDEN, MODE)
    x = draw.integers(0, 0x7F80, (rows, HIDDEN)).astype(np.uint16)
    experts = np.argsort(draw.random((rows, EXPERTS)), axis=1)[:, :TOP_K].astype(np.uint16)
    gate = GateResult(experts, np.full((rows, TOP_K), 0.5, np.float32), np.ones(rows, np.bool_))
    placement = spread(LAYERS, EXPERTS, ["w0"])
    plan = plan_layer(gate, placement.owner(0), 1)
    batch = plan.dispatches[0].batch

    security = security or PLAIN
    link = GrpcStreamLink(open_channel(target, limits.max_frame_bytes, security), "w0")
    ids = iter(range(1, 1 << 30))

    def call() -> object:
        header = Header(
            kind=expert_pb2.FRAME_KIND_FORWARD,
            correlation_id=next(ids),
            epoch=1,
            compute_mode=limits.mode_number,
            wire_dtype=limits.dtype_number,
            rows=rows,
            hidden=HIDDEN,
            units=len(batch.unit_slots),
            group_expert=batch.group_expert,
            group_count=batch.group_count,
            entry_row=batch.entry_row,
            entry_slot=batch.entry_slot,
            entry_unit=batch.entry_unit,
            entry_weight=batch.entry_weight,
            unit_slots=batch.unit_slots,
        )
        for parts in message_frames(header, x.reshape(-1).view(np.uint8).data):
            link.send(parts)
        while True:
            data = link.receive(10.0).obj
            if not isinstance(data, bytes):
                raise TypeError("a frame that is not bytes")
            frame = read_frame(data)
            verify(frame)
            if frame.header.chunk_index == 0:
                check_result(frame.header, len(batch.unit_slots), limits)
            if frame.header.last_chunk:
                return frame

    checkpoint = Checkpoint.open(model)
    membership = Membership(placement, {"w0": WorkerEndpoint("w0", 1, target, security)})
    numerics = ExpertNumerics.of("reference", MODE, checkpoint.config.dtype)
    identity = RouterIdentity("hop", checkpoint.model_hash(), numerics.id)

    def through(kind: LinkKind) -> Callable[[], object]:
        directory = Directory(membership)
        executor = RemoteExecutor(identity, limits, directory, link=kind)
        atexit.register(executor.close)

        def run() -> object:
            with directory.reading() as reading:
                (result,) = executor.run(0, x, plan, reading, Deadline(), 0).results
            if isinstance(result, Exception):
                raise result
            return result

        return run

    frames = rows * limits.row_bytes + 200, len(batch.unit_slots) * limits.result_row_bytes + 60
    return {
        "link": call,
        "executor": through(LinkKind.GRPC),
        "shared": through(LinkKind.SHARED_MEMORY),
        "sizes": frames,
    }


def alternate(arms: dict[str, Callable[[], object]], rounds: int, calls: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in arms}
    for call in arms.values():
        for _ in range(calls):
            call()
    for index in range(rounds):
        order = list(arms) if index % 2 else list(reversed(arms))
        for name in order:
            call, clock = arms[name], time.perf_counter
            for _ in range(calls):
                begin = clock()
                call()
                times[name].append(clock() - begin)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.hop", description=__doc__)
    parser.add_argument("--transport", choices=("tcp", "unix"), default="tcp")
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=200, help="of each arm in a round")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--serve", nargs=4, metavar=("ROLE", "LISTEN", "ARGUMENT", "CERTIFICATES"), help=argparse.SUPPRESS
    )
    args = parser.parse_args()
    if args.serve:
        role, listen, argument, certificates = args.serve
        if role == "echo":
            serve_echo(listen, int(argument), certificates)
        else:
            serve_worker(listen, argument, certificates)
        return 0
    times = measure(args.rows, args.transport, args.rounds, args.calls)
    echo = statistics.median(times["echo"])
    table = {
        name: {
            "median_us": statistics.median(values) * 1e6,
            "p99_us": statistics.quantiles(values, n=100)[98] * 1e6,
            "ratio": statistics.median(values) / echo,
        }
        for name, values in times.items()
    }
    if args.json:
        print(json.dumps(table))
    else:
        print(
            f"{args.transport}, {args.rows} row(s), {args.rounds} x {args.calls} calls, {os.cpu_count()} CPUs"
        )
        for name, row in table.items():
            print(
                f"{name:9} p50 {row['median_us']:7.0f} us  p99 {row['p99_us']:7.0f} us  {row['ratio']:.2f} x echo"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
