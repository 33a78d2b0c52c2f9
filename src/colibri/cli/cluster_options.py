"""Options of `serve` about its workers: what is done when they fail, what they may take, where they run."""

from __future__ import annotations

import argparse

from colibri.cli.experts_on import add_experts_on
from colibri.cli.gpu_options import add_gpu, gpu_options
from colibri.cli.options import BACKENDS
from colibri.cli.parser import integer, number
from colibri.cli.security_options import launched_secret, worker_tls
from colibri.cli.state_options import add_state, state_file, state_options
from colibri.cluster.machine.netns import NetworkPlace
from colibri.cluster.placing.rebalance_options import RebalanceMode, RebalanceOptions
from colibri.cluster.ray.options import RayOptions, Spread
from colibri.deployment.cluster import RESTART_PAUSE_S, ClusterOptions
from colibri.deployment.pinning import CPU
from colibri.router_service.policy import FailoverPolicy


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Everything that `cluster_options` reads."""
    add_launcher(parser)
    add_state(parser)
    add_gpu(parser)
    add_experts_on(
        parser,
        "cuda/FAMILY (cuda/mma-sm90) of the workers' GPUs, with --device cuda (default: asked of this machine's; "
        "needed with --launcher ray)",
    )
    parser.add_argument(
        "--no-hedge", action="store_true", help="never ask a second holder while the first one is late"
    )
    parser.add_argument(
        "--hedge-budget",
        type=number(0, 1),
        default=FailoverPolicy().hedge_budget,
        metavar="SHARE",
        help="messages to second holders, per message sent",
    )
    parser.add_argument(
        "--worker-memory",
        type=integer(1, 1 << 50),
        default=argparse.SUPPRESS,
        metavar="BYTES",
        help="bytes that each worker's experts may take; a load of more is refused (default: any)",
    )
    parser.add_argument(
        "--rebalance",
        choices=[mode.value for mode in RebalanceMode],
        default=RebalanceMode.AUTO.value,
        help="give hot experts more holders and move others, by measured loads, while requests run; auto: unless "
        "workers share CPUs",
    )
    parser.add_argument(
        "--rebalance-interval",
        type=number(0.1, 86400),
        default=RebalanceOptions().interval_s,
        metavar="S",
        help="seconds between looks whether that is worth it",
    )
    parser.add_argument(
        "--worker-netns",
        action="append",
        default=argparse.SUPPRESS,
        metavar="W=NAME,ADDR",
        help="run a worker in a network namespace, where it listens on that address; for tests, as root",
    )
    parser.add_argument(
        "--worker-backend",
        action="append",
        default=argparse.SUPPRESS,
        metavar="W=BACKEND",
        help="run a worker on another backend than --backend, as w1=reference, with --mixed-numerics; for tests",
    )
    parser.add_argument(
        "--restart-pause",
        type=number(0.1, 3600),
        default=RESTART_PAUSE_S,
        metavar="S",
        help="seconds, at most, before a worker that died again and again is started anew",
    )
    parser.add_argument(
        "--allow-faults",
        action="store_true",
        help="workers serve the calls by which tests make them misbehave; never where strangers reach them",
    )


def add_launcher(parser: argparse.ArgumentParser) -> None:
    """Who starts workers, and where."""
    parser.add_argument(
        "--launcher",
        choices=("local", "ray"),
        default="local",
        help="who starts workers: this process on this machine, or Ray on the hosts of its cluster",
    )
    parser.add_argument(
        "--ray-address",
        default=argparse.SUPPRESS,
        metavar="ADDR",
        help="with --launcher ray: of its cluster (default: that which this machine belongs to)",
    )
    parser.add_argument(
        "--spread",
        choices=[spread.value for spread in Spread],
        default=argparse.SUPPRESS,
        help="with --launcher ray: each worker on a host of its own, or several on a host and only replicas apart "
        f"(default: {Spread.HOSTS.value})",
    )
    parser.add_argument(
        "--place-timeout",
        type=number(1, 86400),
        default=argparse.SUPPRESS,
        metavar="S",
        help="with --launcher ray: seconds until a want of places is an error that says what is needed and what there "
        f"is (default: {RayOptions().place_s:g})",
    )
    parser.add_argument(
        "--worker-lease",
        type=number(1, 86400),
        default=argparse.SUPPRESS,
        metavar="S",
        help="with --launcher ray: workers outlive this process for so many seconds; the next one with the same "
        f"--state takes them over (default: {RayOptions().lease_s:g})",
    )


def ray_options(args: argparse.Namespace) -> RayOptions | None:
    """What `add_launcher` read. Raises ConfigError for options that exclude one another."""
    from colibri.errors import ConfigError

    if args.launcher == "local":
        for name in ("ray_address", "spread", "place_timeout", "worker_lease"):
            if hasattr(args, name):
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(option, "--launcher ray beside it", getattr(args, name))
        return None
    if getattr(args, "workers", None) == 0:
        raise ConfigError("--workers", "1 or more, with --launcher ray", args.workers)
    if hasattr(args, "worker_netns"):
        raise ConfigError("--worker-netns", "--launcher local beside it", args.worker_netns[0])
    usual = RayOptions()
    return RayOptions(
        getattr(args, "ray_address", usual.address),
        spread=Spread(getattr(args, "spread", usual.spread.value)),
        place_s=getattr(args, "place_timeout", usual.place_s),
        lease_s=getattr(args, "worker_lease", usual.lease_s),
        state=None if (state := state_file(args)) is None else state.with_name(f"{state.name}.workers"),
    )


def cluster_options(args: argparse.Namespace) -> ClusterOptions:
    """Raises ConfigError, naming the option."""
    from colibri.cluster.machine.netns import check_network_place, parse_network_place
    from colibri.errors import ConfigError

    networks: dict[str, NetworkPlace] = {}
    for text in getattr(args, "worker_netns", ()):
        worker, place = parse_network_place(text, "--worker-netns")
        _check_worker("--worker-netns", worker)
        if worker in networks:
            raise ConfigError("--worker-netns", "each worker once", worker)
        if args.link == "shared-memory":
            raise ConfigError("--link", "auto or grpc, with --worker-netns", args.link)
        check_network_place(place, "--worker-netns")
        networks[worker] = place
    tls, ray = worker_tls(args), ray_options(args)
    # Beside the file by which the next coordinator finds them, since it must show the same.
    kept = None if ray is None or ray.state is None else ray.state.with_name(f"{ray.state.name}.secret")
    return ClusterOptions(
        policy=FailoverPolicy(hedge=not args.no_hedge, hedge_budget=args.hedge_budget),
        memory=getattr(args, "worker_memory", None),
        allow_faults=args.allow_faults,
        networks=networks,
        restart_pause_s=args.restart_pause,
        rebalance=RebalanceOptions(RebalanceMode(args.rebalance), args.rebalance_interval),
        tls=tls,
        secret=launched_secret(args, kept) if tls is None else None,
        insecure=args.insecure,
        ray=ray,
        gpu=gpu_options(args, ",".join(args.device), on_gpu=args.device != (CPU,)),
        experts_on=getattr(args, "experts_on", None),
        backends=_backends(args),
        state=state_options(args),
    )


def _backends(args: argparse.Namespace) -> dict[str, str]:
    from colibri.errors import ConfigError

    found: dict[str, str] = {}
    for text in getattr(args, "worker_backend", ()):
        worker, _, backend = text.partition("=")
        _check_worker("--worker-backend", worker)
        if worker in found:
            raise ConfigError("--worker-backend", "each worker once", worker)
        if backend not in BACKENDS:
            raise ConfigError("--worker-backend", f"W=BACKEND, with one of {', '.join(BACKENDS)}", text)
        found[worker] = backend
    return found


def _check_worker(option: str, worker: str) -> None:
    from colibri.errors import ConfigError

    if not (worker.startswith("w") and worker[1:].isdecimal() and worker == f"w{int(worker[1:])}"):
        raise ConfigError(option, "a worker as w0", worker)
