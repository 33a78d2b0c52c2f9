"""Break a deployment on purpose while it answers, by a seeded plan, and judge every answer.

The plan says what happens (docs/chaos.md): kills, hangs, bad replies, moves, bad networks. Without --target
the tool starts a server as the plan says, and ends it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colibri.chaos.plan import Plan
    from colibri.chaos.runner import ChaosResult
    from colibri.chaos.verdict import Verdict


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path, metavar="PLAN", help="YAML file of the plan")
    parser.add_argument(
        "--target",
        default=argparse.SUPPRESS,
        metavar="ADDR",
        help="a server that runs on this machine, started with --allow-faults (default: one of our own)",
    )
    parser.add_argument(
        "--model",
        default=argparse.SUPPRESS,
        metavar="FOLDER",
        help='checkpoint, or "demo", in place of the plan\'s; with --target, of the answers to compare with',
    )
    parser.add_argument(
        "--seed", type=int, default=argparse.SUPPRESS, help="in place of the plan's (default: as planned)"
    )
    parser.add_argument("--svg", type=Path, default=argparse.SUPPRESS, metavar="FILE", help="draw the run")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--check", action="store_true", help="read the plan, print its events, do nothing")


def run(args: argparse.Namespace) -> int:
    from colibri.chaos.picture import draw
    from colibri.chaos.plan_file import read_plan

    plan = _with_overrides(read_plan(args.plan), args)
    if args.check:
        return _print_schedule(plan)
    result, verdict = run_plan(plan, getattr(args, "target", None), quiet=args.json)
    if hasattr(args, "svg"):
        args.svg.write_text(draw(result, verdict, f"{args.plan.stem}, seed {plan.seed}"))
    _print(result, verdict, args.json)
    return 0 if verdict.passed else 1


def run_plan(plan: Plan, target: str | None = None, *, quiet: bool = True) -> tuple[ChaosResult, Verdict]:
    """The whole run: network, server, expected answers, load and events. target: a server that runs.

    Raises ColibriError for what cannot begin."""
    from colibri.chaos.expected import ask_oracle, workload_of
    from colibri.chaos.network.build import open_network
    from colibri.chaos.network.layout import Place
    from colibri.chaos.operator import Operator
    from colibri.chaos.plan import Action, LinkQuality
    from colibri.chaos.runner import ChaosRun
    from colibri.chaos.serving import serve_command, serving
    from colibri.chaos.verdict import judge
    from colibri.cli.terminal import say
    from colibri.client import Client
    from colibri.errors import ConfigError
    from colibri.load.arrivals import ClosedLoop
    from colibri.load.runner import LoadRun, RunLimits
    from colibri.load.targets.colibri_grpc import GrpcTarget

    tell = (lambda line: None) if quiet else say
    if plan.serve is None:
        raise ConfigError("--model", "the checkpoint of the server, to compare its answers with", "none")
    folder = _model_folder(plan.serve.model)
    with contextlib.ExitStack() as stack:
        network, pid, places = None, None, list[Place]()
        if target is None:
            if plan.network is not None:
                names = [f"w{index}" for index in range(plan.serve.workers)]
                quality = plan.network.quality
                shaped = quality != LinkQuality() or Action.LINK in plan.count()
                network = stack.enter_context(open_network(names, quality, shaped=shaped))
                places = list(network.layout.places)
            tell(f"starting {plan.serve.workers} workers")
            server = stack.enter_context(
                serving(serve_command(folder, plan.serve, places), log=lambda line: None)
            )
            target, pid = server.target, server.pid
        with Client(target) as client:
            model = client.model_info()
        workload = workload_of(plan.load, model, plan.seed)
        tell(f"computing {plan.load.distinct} answers to compare with")
        oracle = ask_oracle(folder, _numerics_options(plan), workload, plan.load.distinct, model)
        load = LoadRun(
            GrpcTarget(target, in_flight=plan.load.users),
            workload,
            ClosedLoop(plan.load.users),
            RunLimits(in_flight=plan.load.users, request_timeout_s=plan.load.request_timeout_s),
        )
        operator = stack.enter_context(Operator(target))
        chaos = ChaosRun(
            plan,
            operator,
            load,
            network,
            coordinator_pid=pid,
            heard=lambda moment: tell(moment.line()),
        )
        result = chaos.run()
    return result, judge(result, oracle.judge_all(result.records))


#: Options of `colibri serve` that decide bits: the oracle needs them, too.
_DECIDE_BITS = ("--compute-mode", "--backend")


def _numerics_options(plan: Plan) -> tuple[str, ...]:
    if plan.serve is None:
        return ()
    return tuple(word for word in plan.serve.options if word.partition("=")[0] in _DECIDE_BITS)


def _model_folder(name: str) -> Path:
    from colibri.models.demo_model import build_demo_model, colibri_home

    return build_demo_model(colibri_home(os.environ)) if name == "demo" else Path(name)


def _with_overrides(plan: Plan, args: argparse.Namespace) -> Plan:
    from dataclasses import replace

    from colibri.chaos.plan import ServeSpec

    if hasattr(args, "seed"):
        plan = replace(plan, seed=args.seed)
    if hasattr(args, "model"):
        plan = replace(plan, serve=replace(plan.serve or ServeSpec(args.model), model=args.model))
    return plan


def _print_schedule(plan: Plan) -> int:
    from colibri.chaos.schedule import schedule

    for event in schedule(plan):
        about = event.spec.worker if event.spec.workers == 0 else f"{event.spec.workers} workers"
        print(f"{event.at_s:8.3f} s  {event.phase:<16} {event.spec.action.value:<12} {about}")
    return 0


def _print(result: ChaosResult, verdict: Verdict, as_json: bool) -> None:
    from colibri.chaos.report import document, lines

    if as_json:
        print(json.dumps(document(result, verdict)))
        return
    sys.stdout.write("\n".join(lines(result, verdict)) + "\n")
