"""Options about where workers run: NUMA nodes, CPUs, whether they may share those or span nodes.

Kept light: `colibri expert` reads them before anything heavy may be imported.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from colibri.deployment.pinning import AUTO, CPU, CUDA, PinningOptions

MAX_NODE = 1023
_MAX_THREADS = 1024


def add_worker_pinning(parser: argparse.ArgumentParser) -> None:
    """Of one worker, started by itself."""
    parser.add_argument(
        "--numa-node",
        type=auto_or(-1, MAX_NODE),
        default=AUTO,
        metavar="N",
        help="node that CPUs and memory come from; auto: that with the most free cores, or that of --cpus; -1: no "
        "memory policy, and without --cpus no pinning",
    )
    parser.add_argument(
        "--cpu-threads",
        type=auto_or(1, _MAX_THREADS),
        default=AUTO,
        metavar="N",
        help="compute threads, each with a hardware thread of the node; auto: as many as are free there",
    )
    _add_permissions(parser)


def add_deployment_pinning(parser: argparse.ArgumentParser, *, share: bool = False) -> None:
    """Of the workers of a deployment; what `pinning_options` reads. share: they share CPUs where they must anyway."""
    parser.add_argument(
        "--numa-node",
        type=list_of(auto_or(0, MAX_NODE)),
        default=AUTO,
        metavar="N[,N...]",
        help="node of all workers, or of each; auto: in proportion to the nodes' free cores",
    )
    parser.add_argument(
        "--cpu-threads",
        type=list_of(auto_or(1, _MAX_THREADS)),
        default=AUTO,
        metavar="N[,N...]",
        help="compute threads of all workers, or of each; auto: an even share of its node's free cores",
    )
    parser.add_argument(
        "--device",
        type=_devices,
        default=CPU,
        metavar="DEVICE[,DEVICE...]",
        help="where all workers compute, or each: cpu; cuda: a GPU of its own for each, on its NUMA node; cuda:N; "
        "auto: cuda where each can have one, else cpu. GPUs compute other bits than CPUs: both only with "
        "--mixed-numerics",
    )
    _add_permissions(parser, share)


def _add_permissions(parser: argparse.ArgumentParser, share: bool = False) -> None:
    if share:
        parser.set_defaults(share_cpus=True)
    else:
        parser.add_argument(
            "--share-cpus",
            action="store_true",
            help="where cores do not suffice, let workers have the same CPUs and take turns, rather than refuse",
        )
    parser.add_argument(
        "--allow-cross-node",
        action="store_true",
        help="start a worker whose CPUs and memory lie on different NUMA nodes, rather than refuse",
    )
    parser.add_argument(
        "--cpu-locks",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="file by which the workers of a host keep off one another's CPUs; none: take no notice of others "
        "(default: /dev/shm/colibri-cpus, which is everybody's)",
    )


def pinning_options(args: argparse.Namespace) -> PinningOptions:
    """What `add_deployment_pinning` read."""
    return PinningOptions(
        args.numa_node,
        args.cpu_threads,
        args.share_cpus,
        args.allow_cross_node,
        args.device,
        getattr(args, "cpu_locks", None),
    )


def _devices(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    for each in found:
        if (
            each != CPU
            and each != CUDA
            and re.fullmatch(r"cuda:(0|[1-9]\d{0,2})", each) is None
            and found != (AUTO,)
        ):
            raise argparse.ArgumentTypeError(
                f"expected auto, or cpu, cuda or cuda:N for all workers or each, got {text!r}"
            )
    return found


def auto_or(low: int, high: int) -> Callable[[str], int | None]:
    """An argparse type: a whole number from `low` to `high`, or auto as None."""

    def parse(text: str) -> int | None:
        if text == AUTO:
            return None
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"expected {AUTO} or a whole number from {low} to {high}, got {text!r}"
            )
        return value

    return parse


def list_of(parse: Callable[[str], int | None]) -> Callable[[str], tuple[int | None, ...]]:
    """An argparse type: values with commas between them."""
    return lambda text: tuple(parse(part.strip()) for part in text.split(","))
