"""Options that several verbs share, and what they mean to `assemble`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.cli.parser import integer, model_place, number
from colibri.cli.pinning_options import add_deployment_pinning, pinning_options
from colibri.cli.service_log import add_service_log

if TYPE_CHECKING:
    from colibri.deployment.options import DeploymentOptions

COMPUTE_MODES = ("fp32", "bf16")
#: Values of colibri.kernels.api.GatePrecision.
ROUTER_PRECISIONS = ("fp32", "int16")
BACKENDS = ("cpu", "reference")
#: Values of colibri.transport.link.LinkKind, which is not imported here: --help stays quick.
LINKS = ("auto", "grpc", "shared-memory")


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model",
        type=model_place,
        metavar="MODEL",
        help="Hugging Face folder of a Mixtral checkpoint, a pack of one (folder or URL), or `demo`: the demo model",
    )


def add_numerics(parser: argparse.ArgumentParser) -> None:
    add_compute(parser)
    parser.add_argument(
        "--threads",
        type=integer(1, 1024),
        default=argparse.SUPPRESS,
        help="compute threads of each process (default: its share of the CPUs)",
    )


def add_compute(parser: argparse.ArgumentParser) -> None:
    """What is computed, and by which backend."""
    parser.add_argument(
        "--compute-mode",
        choices=COMPUTE_MODES,
        default=argparse.SUPPRESS,
        help="where rounding happens (default: bf16 for bf16 checkpoints and their packs, else fp32)",
    )
    parser.add_argument("--backend", choices=BACKENDS, default="cpu", help="who computes")


def add_router_precision(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--router-precision",
        choices=ROUTER_PRECISIONS,
        default="fp32",
        help="what orders gate logits: themselves, or 16-bit integers scaled to the row's largest; at the end it "
        "is told how often fp32 would have chosen otherwise",
    )


def add_deployment(parser: argparse.ArgumentParser, workers: int, *, share: bool = False) -> None:
    """Everything that `deployment_options` reads besides the model. None of it changes a bit of an answer,
    but the compute mode, the backend and the router's precision. share: workers share CPUs where they must, without
    being asked to."""
    add_numerics(parser)
    add_router_precision(parser)
    parser.add_argument(
        "--workers",
        type=integer(0, 256),
        default=argparse.SUPPRESS,
        metavar="N",
        help=f"expert workers; 0: none, all in this process (default: {workers}; on GPUs by --device, one for each)",
    )
    parser.set_defaults(usual_workers=workers)
    parser.add_argument(
        "--replicas",
        type=integer(1, 16),
        default=1,
        metavar="N",
        help="workers that hold each expert; with 2 or more, the death of one costs no load",
    )
    parser.add_argument(
        "--start-timeout",
        type=number(1, 86400),
        default=argparse.SUPPRESS,
        metavar="S",
        help="seconds until a worker's process must answer, before it loads anything (default: 60, and 10 more for "
        "each worker)",
    )
    add_deployment_pinning(parser, share=share)
    add_mixed(parser)
    parser.add_argument(
        "--transport", choices=("unix", "tcp"), default="unix", help="how this process reaches its workers"
    )
    add_link(parser)
    parser.add_argument(
        "--kv-page", type=int, choices=(8, 16, 32, 64), default=16, help="positions of a page of the KV cache"
    )
    parser.add_argument(
        "--kv-tokens",
        type=integer(16, 1 << 26),
        default=16384,
        metavar="N",
        help="positions that the KV cache holds over all requests",
    )
    parser.add_argument(
        "--prefill-chunk",
        type=integer(1, 1 << 16),
        default=128,
        metavar="N",
        help="rows of prefill in a step",
    )
    parser.add_argument(
        "--prefill-ms",
        type=number(0, 60_000),
        default=50.0,
        metavar="MS",
        help="milliseconds that prefill may add to a step beside running answers, about; 0: any",
    )


def add_mixed(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--mixed-numerics",
        action="store_true",
        help="let workers serve together that do not compute the same bits (GPUs and CPUs): each expert belongs to one "
        "kind for good, and answers, receipts and ids are those of the very mix",
    )


def add_link(parser: argparse.ArgumentParser) -> None:
    """What a router's own connections have."""
    parser.add_argument(
        "--link",
        choices=LINKS,
        default="auto",
        help="what carries rows to the workers; auto: shared memory on one host, gRPC between hosts",
    )


def add_listen(parser: argparse.ArgumentParser, default: str, *, grace_s: float = 30.0) -> None:
    """What every service has: where it listens, how it says so, how it ends."""
    parser.add_argument(
        "--listen", default=default, metavar="ADDR", help="host:port (port 0: a free one) or unix:/path"
    )
    parser.add_argument(
        "--grace", type=number(0, 3600), default=grace_s, metavar="S", help="seconds to finish after SIGTERM"
    )
    parser.add_argument("--json", action="store_true", help="print the ready line as JSON")
    add_service_log(parser)


def deployment_options(args: argparse.Namespace, model: Path | str) -> DeploymentOptions:
    """What `add_deployment` read. Raises ConfigError for values that exclude one another."""
    from colibri.coordinator.engine import EngineOptions
    from colibri.deployment.options import DeploymentOptions
    from colibri.transport.link import LinkKind

    limits = {name: getattr(args, name) for name in ("max_running", "max_queued") if hasattr(args, name)}
    # A step holds every running answer beside a whole chunk, or the chunk would be cut silently.
    usual = EngineOptions()
    rows = args.prefill_chunk + limits.get("max_running", usual.max_running)
    engine = EngineOptions(
        max_batch_rows=max(usual.max_batch_rows, rows),
        kv_page=args.kv_page,
        kv_tokens=args.kv_tokens,
        prefill_chunk=args.prefill_chunk,
        prefill_s=args.prefill_ms / 1e3,
        **limits,
    )
    return DeploymentOptions(
        model=model,
        workers=getattr(args, "workers", None),
        usual_workers=args.usual_workers,
        mixed_numerics=args.mixed_numerics,
        replicas=args.replicas,
        start_timeout_s=getattr(args, "start_timeout", None),
        compute_mode=getattr(args, "compute_mode", None),
        router_precision=args.router_precision,
        backend=args.backend,
        threads=getattr(args, "threads", None),
        transport=args.transport,
        link=LinkKind(args.link),
        pinning=pinning_options(args),
        engine=engine,
    )
