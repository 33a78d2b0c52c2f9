"""Serve a model: Generation, Router, health and reflection on one address."""

from __future__ import annotations

import argparse
import json
import os
import signal
from types import FrameType
from typing import TYPE_CHECKING

from colibri.cli import options
from colibri.cli.parser import integer, number

if TYPE_CHECKING:
    from colibri.cli.deployment import Deployment
    from colibri.coordinator.servicer import GenerationServicer
    from colibri.rpc.server import RpcServer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument(
        "--listen",
        default="127.0.0.1:50051",
        metavar="ADDR",
        help="host:port (port 0: a free one) or unix:/path",
    )
    options.add_deployment(parser, workers=2)
    parser.add_argument(
        "--max-running", type=integer(1, 4096), default=16, metavar="N", help="requests at once"
    )
    parser.add_argument(
        "--max-queued", type=integer(0, 65536), default=64, metavar="N", help="requests that wait"
    )
    parser.add_argument(
        "--router-max-rows", type=integer(1, 65536), default=4096, metavar="N", help="rows of one Router call"
    )
    parser.add_argument(
        "--grace",
        type=number(0, 3600),
        default=30.0,
        metavar="S",
        help="seconds that answers may take after SIGTERM",
    )
    parser.add_argument("--json", action="store_true", help="print the ready line as JSON")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.assemble import assemble
    from colibri.cli.listen import check_free
    from colibri.cli.phases import Phases, process_age_s
    from colibri.cli.progress import Loading
    from colibri.cli.terminal import say

    check_free(args.listen, "--listen")  # now rather than after a long load
    phases = Phases(process_age_s())
    phases.mark("process start")
    with Loading() as loading:
        deployment = assemble(options.deployment_options(args, args.model), phases, loading)
    with deployment:
        server, generation = _build(deployment, args)
        stop = _Stop(deployment)
        server.start()
        server.set_serving(True)
        phases.mark("serving")
        for line in [*deployment.describe(), *phases.lines()]:
            say(line)
        ready = {"target": server.target, "pid": os.getpid(), "workers": deployment.worker_names}
        print(json.dumps(ready) if args.json else f"ready on {server.target}", flush=True)
        number = stop.wait()
        say(f"{signal.Signals(number).name}: no more requests; {args.grace:g} s for those that run")
        server.stop(args.grace)
        generation.close()
    return 0 if number == signal.SIGTERM else 128 + number


def _build(deployment: Deployment, args: argparse.Namespace) -> tuple[RpcServer, GenerationServicer]:
    from colibri.coordinator.servicer import GenerationServicer, ServedModel
    from colibri.router_service.servicer import RouterServicer, max_message_bytes
    from colibri.rpc.server import build_server
    from colibri.transport.options import CONTROL_MESSAGE_BYTES, server_options

    checkpoint, numerics = deployment.checkpoint, deployment.numerics
    model = ServedModel(
        name=checkpoint.folder.resolve().name,
        model_hash=checkpoint.model_hash(),
        config=checkpoint.config,
        defaults=checkpoint.generation,
        numerics=numerics,
    )
    generation = GenerationServicer(deployment.engine, deployment.tokenizer, model, deployment.directory)
    router = RouterServicer(
        deployment.router,
        model_hash=model.model_hash,
        expert_numerics_id=numerics.expert.id,
        max_rows=args.router_max_rows,
    )
    limit = max(CONTROL_MESSAGE_BYTES, max_message_bytes(checkpoint.config.hidden, args.router_max_rows))
    server = build_server(
        [generation.service(), router.as_service()],
        listen=args.listen,
        max_calls=generation.max_calls,
        options=server_options(limit),
        name="colibri serve",
    )
    return server, generation


class _Stop:
    """The first SIGTERM or SIGINT asks for the orderly end, the second one ends the process where it
    stands."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._number = 0
        # An eventfd: a handler that takes a lock could wait for the very code that it interrupts.
        self._asked = os.eventfd(0, os.EFD_CLOEXEC)
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(signal.SIGINT, self._handle)

    def wait(self) -> int:
        """The signal's number, as soon as one has come."""
        os.eventfd_read(self._asked)
        return self._number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._number:
            if self._deployment.launcher is not None:
                self._deployment.launcher.abandon()
            os._exit(128 + number)
        self._number = number
        os.eventfd_write(self._asked, 1)
