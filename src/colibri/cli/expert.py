"""Run one expert worker by hand; routers tell it which experts to load."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from colibri.cli import options
from colibri.cli.gpu_options import add_gpu, gpu_options
from colibri.cli.model import locate_model
from colibri.cli.parser import integer, number
from colibri.cli.pinning_options import add_worker_pinning
from colibri.cli.security_options import (
    add_server_security,
    add_worker_secret,
    demanded_secret,
    server_security,
)

#: Takes one line of the log.
Log = Callable[[str], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_compute(parser)
    options.add_listen(parser, "127.0.0.1:0", grace_s=10.0)
    parser.add_argument("--name", default="w0", help="how routers and errors call it")
    parser.add_argument(
        "--incarnation",
        type=integer(1, (1 << 63) - 1),
        default=argparse.SUPPRESS,
        metavar="N",
        help="number of this life, larger than that of any before (default: the time in microseconds)",
    )
    parser.add_argument(
        "--cpus",
        default=argparse.SUPPRESS,
        metavar="LIST",
        help="CPUs to stay on, as 0-3,8 (default: free cores of a node)",
    )
    add_worker_pinning(parser)
    parser.add_argument(
        "--max-rows", type=integer(1, 1 << 16), default=1024, metavar="N", help="rows of one request"
    )
    parser.add_argument(
        "--max-queued", type=integer(1, 1 << 16), default=64, metavar="N", help="requests that may wait"
    )
    parser.add_argument(
        "--allow-faults",
        action="store_true",
        help="serve the calls by which tests make it misbehave; never where strangers reach it",
    )
    parser.add_argument(
        "--memory",
        type=integer(1, 1 << 50),
        default=argparse.SUPPRESS,
        metavar="BYTES",
        help="bytes that experts may take; a load of more is refused (default: any)",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="DEVICE",
        help="cpu, cuda:N (numbered as on the PCI bus), cuda:ADDRESS of that bus, or auto: cuda:0 where it can be "
        "used; a GPU has an expert_numerics_id of its own",
    )
    add_gpu(parser)
    add_server_security(parser, tokens=False)
    add_worker_secret(parser, "demanded of every call, of routers with the same file")
    parser.add_argument(
        "--worker-secret-fd",
        type=integer(3, 1 << 20),
        default=argparse.SUPPRESS,
        metavar="FD",
        help="read the secret from this descriptor, which whoever starts the worker lets it inherit",
    )
    parser.add_argument(
        "--yielding-start",
        action="store_true",
        help="start at a low CPU priority, beside workers that serve",
    )
    parser.add_argument(
        "--no-shared-memory",
        action="store_true",
        help="take rows over the network only, also from routers of this host",
    )
    parser.add_argument(
        "--lease",
        type=number(1, 86400),
        default=argparse.SUPPRESS,
        metavar="S",
        help="end when no coordinator has called for so many seconds (default: never)",
    )
    parser.add_argument(
        "--parent-pid",
        type=integer(1, 1 << 22),
        default=argparse.SUPPRESS,
        metavar="PID",
        help="end when this process does",
    )


def run(args: argparse.Namespace) -> int:
    # Light on purpose: NumPy and gRPC may only be imported once the process has settled.
    from colibri.cli.listen import check_free
    from colibri.cli.service_log import start_log, style_of
    from colibri.cli.standard_streams import keep_native_code_from_waiting
    from colibri.cli.terminal import announce
    from colibri.cluster.machine.cpu_list import parse_cpu_list
    from colibri.deployment.expert_place import PlaceWish, expert_place
    from colibri.deployment.pinning import use_locks
    from colibri.expert_service.cpu_locks import host_locks
    from colibri.expert_service.worker import WorkerConfig, run_worker, settle

    keep_native_code_from_waiting()
    log = start_log(f"worker {args.name}", style_of(args))
    security = replace(server_security(args), secret=demanded_secret(args))
    check_free(args.listen, "--listen", security)
    wish = PlaceWish(
        cpus=parse_cpu_list(args.cpus, "--cpus") if hasattr(args, "cpus") else None,
        numa_node=args.numa_node,
        cpu_threads=args.cpu_threads,
        share=args.share_cpus,
        cross_node=args.allow_cross_node,
    )
    use_locks(getattr(args, "cpu_locks", None), os.environ)
    place, crossing = expert_place(wish, host_locks(os.environ))
    if crossing:
        log(f"{args.name}: CROSSES NUMA NODES: {crossing}")
    settle(place, getattr(args, "parent_pid", None))
    locate_model(args)
    device = _device(args, log)
    config = WorkerConfig(
        model=args.model,
        name=args.name,
        listen=args.listen,
        compute_mode=getattr(args, "compute_mode", None) or _default_mode(args.model, log),
        incarnation=getattr(args, "incarnation", None) or time.time_ns() // 1000,
        backend=args.backend,
        # The reference backend has one thread, whatever the place could bear.
        threads=place.threads if args.backend == "cpu" else args.cpu_threads,
        device=device,
        gpu=gpu_options(args, args.device, on_gpu=device != "cpu" or args.device == "auto"),
        cpus=place.cpus,
        numa_node=place.numa_node,
        oversubscribed=place.oversubscribed,
        crossing=crossing,
        max_rows=args.max_rows,
        max_queued=args.max_queued,
        grace_s=args.grace,
        parent_pid=getattr(args, "parent_pid", None),
        lease_s=getattr(args, "lease", None),
        memory=getattr(args, "memory", None),
        yielding_start=args.yielding_start,
        share_memory=not args.no_shared_memory,
        allow_faults=args.allow_faults,
        security=security,
    )

    def ready(target: str) -> None:
        told = {"target": target, "incarnation": config.incarnation, "pid": os.getpid()}
        announce(json.dumps(told) if args.json else f"ready on {target}")

    return run_worker(config, ready)


def _device(args: argparse.Namespace, log: Log) -> str:
    """'cpu' or 'cuda:N'. Raises ConfigError for another word, and for an address that cannot be looked up."""
    from colibri.errors import ConfigError
    from colibri.kernels.cuda.device import DeviceError
    from colibri.kernels.cuda.opening import choose_device

    try:
        index = choose_device(args.device, log)
    except ValueError as error:
        raise ConfigError("--device", "auto, cpu, cuda:N or cuda:PCI-ADDRESS", args.device) from error
    except DeviceError as error:
        raise ConfigError("--device", f"a device that {args.device} names and can be used", error) from error
    if index is not None:
        if args.backend != "cpu":
            raise ConfigError("--backend", f"cpu, or none, with --device {args.device}", args.backend)
        return f"cuda:{index}"
    return "cpu"


def _default_mode(model: Path | str, log: Log) -> str:
    from colibri.deployment.compute_mode import choose_mode
    from colibri.models.model import open_model

    return choose_mode(open_model(model), None, log).value
