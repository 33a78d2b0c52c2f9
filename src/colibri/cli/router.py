"""Serve Router alone, over workers that run already: for services that bring their own hidden states."""

from __future__ import annotations

import argparse
import json
import os
import signal
from dataclasses import replace

from colibri.cli import options
from colibri.cli.experts_on import add_experts_on
from colibri.cli.parser import integer, number
from colibri.cli.security_options import (
    add_plane_security,
    add_server_security,
    plane_security,
    server_security,
    worker_secret,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument(
        "--expert",
        action="append",
        required=True,
        metavar="TARGET",
        help="address of a running `colibri expert`, once for each; their experts are loaded from here",
    )
    add_experts_on(
        parser,
        "cuda/FAMILY (cuda/mma-sm90) where the workers are GPUs of that family, as their expert_numerics_id says; "
        "the gate stays here (default: workers of the kind of --backend)",
    )
    options.add_mixed(parser)
    options.add_listen(parser, "127.0.0.1:50052")
    options.add_numerics(parser)
    options.add_router_precision(parser)
    options.add_link(parser)
    add_server_security(parser)
    add_plane_security(parser, launches=False)
    parser.add_argument(
        "--max-rows", type=integer(1, 65536), default=4096, metavar="N", help="rows of one call"
    )
    parser.add_argument(
        "--find-timeout",
        type=number(0.1, 3600),
        default=30.0,
        metavar="S",
        help="seconds to wait for a worker",
    )


def run(args: argparse.Namespace) -> int:
    security = server_security(args)
    from colibri.cli.listen import check_free
    from colibri.cli.progress import Loading
    from colibri.cli.service_log import start_log, style_of
    from colibri.cli.signals import StopSignals
    from colibri.cli.standard_streams import keep_native_code_from_waiting
    from colibri.cli.terminal import announce
    from colibri.cluster.operator.operator_service import OperatorServicer
    from colibri.deployment.assemble_router import RouterOptions, assemble_router
    from colibri.grpc_options import server_options
    from colibri.models.location import split_pin
    from colibri.router_service.servicer import RouterServicer, max_message_bytes
    from colibri.rpc.server import build_server
    from colibri.security.public_text import hide
    from colibri.transport.link import LinkKind

    keep_native_code_from_waiting()
    log = start_log("router", style_of(args))
    check_free(args.listen, "--listen", security)
    hide(split_pin(args.model)[0])
    wanted = RouterOptions(
        args.model,
        args.expert,
        compute_mode=getattr(args, "compute_mode", None),
        backend=args.backend,
        threads=getattr(args, "threads", None),
        router_precision=args.router_precision,
        link=LinkKind(args.link),
        find_timeout_s=args.find_timeout,
        security=replace(plane_security(args), secret=worker_secret(args)),
        experts_on=getattr(args, "experts_on", None),
        mixed_numerics=args.mixed_numerics,
    )
    with Loading(log) as loading:
        assembled = assemble_router(wanted, log, progress=loading.update)
    with assembled as parts:
        servicer = RouterServicer(
            parts.router,
            model_hash=parts.model_hash,
            expert_numerics_id=parts.expert_numerics_id,
            max_rows=args.max_rows,
        )
        server = build_server(
            [servicer.as_service(), OperatorServicer(parts.status, None).service()],
            listen=args.listen,
            options=server_options(max_message_bytes(parts.router.hidden, args.max_rows)),
            name="colibri router",
            security=security,
        )
        stop = StopSignals()
        server.start()
        server.set_serving(True)
        log(server.offer)
        ready = {"target": server.target, "pid": os.getpid(), "workers": parts.workers}
        announce(json.dumps(ready) if args.json else f"ready on {server.target}")
        number = stop.wait()
        log(f"{signal.Signals(number).name}: no more calls; {args.grace:g} s for those that run")
        server.stop(args.grace)
    return 0 if number == signal.SIGTERM else 128 + number
