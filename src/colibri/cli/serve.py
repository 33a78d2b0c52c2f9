"""Serve a model: Generation, Router, health and reflection on one address."""

from __future__ import annotations

import argparse
import json
import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

from colibri.cli import options
from colibri.cli.cluster_options import add_cluster, cluster_options
from colibri.cli.parser import add_parent, integer
from colibri.cli.security_options import add_plane_security, add_server_security, server_security

if TYPE_CHECKING:
    from colibri.coordinator.servicer import GenerationServicer
    from colibri.deployment.running import Deployment
    from colibri.rpc.server import RpcServer
    from colibri.security.server import ServerSecurity


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_listen(parser, "127.0.0.1:50051")
    options.add_deployment(parser, workers=2)
    add_cluster(parser)
    add_server_security(parser)
    add_plane_security(parser, launches=True)
    parser.add_argument(
        "--max-running", type=integer(1, 4096), default=16, metavar="N", help="requests at once"
    )
    parser.add_argument(
        "--max-queued", type=integer(0, 65536), default=64, metavar="N", help="requests that wait"
    )
    parser.add_argument(
        "--router-max-rows", type=integer(1, 65536), default=4096, metavar="N", help="rows of one Router call"
    )
    add_parent(parser)


def run(args: argparse.Namespace) -> int:
    security = server_security(args)
    from colibri.cli.assembled import assembled
    from colibri.cli.listen import check_free
    from colibri.cli.service_log import start_log, style_of
    from colibri.cli.signals import StopSignals
    from colibri.cli.standard_streams import keep_native_code_from_waiting
    from colibri.cli.terminal import announce
    from colibri.deployment.describe import describe
    from colibri.deployment.phases import Phases, process_age_s
    from colibri.expert_service.pinning import die_with_parent
    from colibri.models.location import split_pin
    from colibri.security.public_text import hide

    if hasattr(args, "parent_pid"):
        die_with_parent(args.parent_pid)
    keep_native_code_from_waiting()
    log = start_log("serve", style_of(args))
    check_free(args.listen, "--listen", security)  # now rather than after a long load
    hide(split_pin(args.model)[0])
    phases = Phases(process_age_s())
    phases.mark("process start")
    wanted = replace(options.deployment_options(args, args.model), cluster=cluster_options(args))
    with assembled(wanted, phases, log) as deployment:
        server, generation = _build(deployment, args, security)
        stop = StopSignals(deployment.abandon)
        server.start()
        server.set_serving(True)
        phases.mark("serving")
        for line in [*describe(deployment), *phases.lines(), server.offer]:
            log(line)
        ready = {"target": server.target, "pid": os.getpid(), "workers": deployment.worker_names}
        announce(json.dumps(ready) if args.json else f"ready on {server.target}")
        number = stop.wait()
        log(f"{signal.Signals(number).name}: no more requests; {args.grace:g} s for those that run")
        server.stop(args.grace)
        generation.close()
    return 0 if number == signal.SIGTERM else 128 + number


def _build(
    deployment: Deployment, args: argparse.Namespace, security: ServerSecurity
) -> tuple[RpcServer, GenerationServicer]:
    from colibri.cli.terminal import dropped_lines
    from colibri.cluster.operator.operator_service import MAX_CALLS
    from colibri.coordinator.servicer import GenerationServicer, ServedModel
    from colibri.grpc_options import CONTROL_MESSAGE_BYTES, server_options
    from colibri.models.chat_renderer import load_chat_renderer
    from colibri.models.model import confirm_texts
    from colibri.router_service.servicer import RouterServicer, max_message_bytes
    from colibri.rpc.server import build_server

    model, numerics = deployment.model, deployment.numerics
    served = ServedModel(
        name=model.name,
        model_hash=model.weights_hash,
        config=model.config,
        defaults=model.generation,
        content_digest=deployment.content_digest,
    )
    tokenizer = deployment.tokenizer
    chat = None if tokenizer is None else load_chat_renderer(model.folder, tokenizer)
    confirm_texts(model)
    generation = GenerationServicer(deployment.engine, tokenizer, served, deployment.directory, chat=chat)
    router = RouterServicer(
        deployment.router,
        model_hash=model.model_hash(),
        expert_numerics_id=numerics.expert.id,
        max_rows=args.router_max_rows,
        pauses=deployment.engine.pauses,
    )
    operator = deployment.operator(served.name, dropped_lines)
    limit = max(CONTROL_MESSAGE_BYTES, max_message_bytes(model.config.hidden, args.router_max_rows))
    server = build_server(
        [generation.service(), router.as_service(), operator.service()],
        listen=args.listen,
        max_calls=generation.max_calls + MAX_CALLS,
        options=server_options(limit),
        name="colibri serve",
        security=security,
    )
    return server, generation
