"""Plan where experts should lie for their measured loads, and move them there; no request notices."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from colibri.cli.operator_options import add_change
from colibri.cli.parser import integer
from colibri.cli.security_options import channel_security
from colibri.deployment.sizes import size

if TYPE_CHECKING:
    from colibri.v1 import operator_pb2 as pb

ABOUT = """
The plan's gain is the share of the time that a step waits for experts; what is told as `slowest over mean` is the
largest load of a worker over the mean, by speed: 1 is level. With --from-file nothing is asked of a server: the file is
the JSON that `colibri status --loads --experts --json` prints, or one with `loads` (by layer and expert) and, optional,
`workers` (each with name and, optional, host, speed, memory), `holders` (by layer and expert, names of workers),
`replicas` and `expert_bytes`.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dry-run", action="store_true", help="print the plan and what it would gain; move nothing"
    )
    parser.add_argument(
        "--from-file",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="plan for the loads of this file, without a server; with --dry-run",
    )
    parser.add_argument(
        "--for-workers",
        type=integer(1, 65536),
        default=argparse.SUPPRESS,
        metavar="N",
        help="with --from-file: plan for so many workers, in place of those of the file",
    )
    parser.add_argument(
        "--for-replicas",
        type=integer(1, 256),
        default=argparse.SUPPRESS,
        metavar="N",
        help="with --from-file: holders that each expert has at least (default: as in the file, or 1)",
    )
    add_change(parser)


def run(args: argparse.Namespace) -> int:
    from colibri.cli.terminal import say, shown
    from colibri.client.operator import Operator
    from colibri.errors import ConfigError

    if hasattr(args, "from_file"):
        if not args.dry_run:
            raise ConfigError(
                "--from-file", "together with --dry-run: there is no server to change", args.from_file
            )
        from colibri.cli.place_file import plan_file

        workers, replicas = getattr(args, "for_workers", None), getattr(args, "for_replicas", None)
        _print(plan_file(args.from_file, workers, replicas), args.json)
        return 0
    for option in ("for_workers", "for_replicas"):
        if hasattr(args, option):
            raise ConfigError(
                f"--{option.replace('_', '-')}", "together with --from-file", getattr(args, option)
            )
    plans: list[pb.PlacementPlan] = []

    def follow(step: pb.ChangeProgress) -> None:
        if step.HasField("plan"):
            plans.append(step.plan)
            if not args.json and not args.dry_run:
                for line in _describe(_document(step.plan), limit=20):
                    say(line)
        elif not step.done and not args.json:
            say(f"{step.phase}: {step.text}")

    with Operator(args.target, follow, channel_security(args)) as operator:
        last = operator.place(args.dry_run, args.timeout)
    plan = _document(plans[0])
    if args.dry_run:
        _print(plan, args.json)
    elif args.json:
        print(json.dumps({"done": last.done, "text": last.text, "epoch": last.epoch, "plan": plan}))
    else:
        print(shown(f"{last.text}, epoch {last.epoch}"))
    return 0


def _print(plan: dict[str, Any], as_json: bool) -> None:
    from colibri.cli.terminal import shown

    print(json.dumps(plan) if as_json else shown("\n".join(_describe(plan))))


def _document(plan: pb.PlacementPlan) -> dict[str, Any]:
    def balance(message: pb.Balance) -> dict[str, float]:
        return {"worst": message.worst, "mean": message.mean, "slowdown": message.slowdown}

    return {
        "before": balance(plan.before),
        "after": balance(plan.after),
        "gain": 1 - plan.after.slowdown / plan.before.slowdown,
        "bytes": plan.bytes,
        "loads": [[copy.worker, copy.layer, copy.expert] for copy in plan.loads],
        "drops": [[copy.worker, copy.layer, copy.expert] for copy in plan.drops],
    }


def _describe(plan: dict[str, Any], limit: int | None = None) -> Iterator[str]:
    """limit: workers that are told one by one."""
    before, after = plan["before"], plan["after"]
    yield f"{'slowest over mean':<20} {'now':>8} {'planned':>8}"
    for name, what in (("worst layer", "worst"), ("mean of layers", "mean"), ("whole model", "slowdown")):
        yield f"{name:<20} {before[what]:>8.3f} {after[what]:>8.3f}"
    yield f"gain: {100 * plan['gain']:.1f} % of the time that a step waits for experts"
    many = "copy" if len(plan["loads"]) == 1 else "copies"
    yield f"{len(plan['loads'])} {many} to load ({size(plan['bytes'])}), {len(plan['drops'])} to drop"
    changes: dict[str, dict[str, list[str]]] = {}
    for what in ("loads", "drops"):
        for worker, layer, expert in plan[what]:
            changes.setdefault(worker, {"loads": [], "drops": []})[what].append(f"{layer}:{expert}")
    for worker, change in sorted(changes.items(), key=lambda item: (len(item[0]), item[0]))[:limit]:
        told = [f"{what} {' '.join(change[what])}" for what in ("loads", "drops") if change[what]]
        yield f"{worker} {'; '.join(told)}"
