"""Show a running deployment: its workers, their health and experts, the placement, the work that waits."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from colibri.cli.operator_options import add_target
from colibri.cli.parser import number
from colibri.cli.security_options import channel_security
from colibri.cli.signals import interrupts_kept
from colibri.cli.terminal import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.message import Message

    from colibri.v1 import operator_pb2 as pb

_TIMEOUT_S = 10.0
_COLUMNS = (
    "worker",
    "state",
    "health",
    "link",
    "life",
    "pid",
    "CPUs",
    "node",
    "experts",
    "weights",
    "rows",
    "queued",
    "oldest",
    "p50",
    "p99",
    "deaths",
    "up",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    parser.add_argument("--experts", action="store_true", help="with the experts that each worker holds")
    parser.add_argument(
        "--loads",
        action="store_true",
        help="with the rows that each expert was chosen for: what `colibri place` plans by",
    )
    parser.add_argument(
        "--watch",
        type=number(0.1, 3600),
        default=argparse.SUPPRESS,
        metavar="S",
        help="again every S seconds, until interrupted",
    )


def run(args: argparse.Namespace) -> int:
    from colibri.client.operator import Operator

    every_s = getattr(args, "watch", None)
    with interrupts_kept() as check, Operator(args.target, security=channel_security(args)) as operator:
        while True:
            reply = operator.status(experts=args.experts, loads=args.loads, timeout_s=_TIMEOUT_S)
            if every_s is not None and not args.json and sys.stdout.isatty():
                print("\x1b[H\x1b[2J", end="")
            print(json.dumps(document(reply)) if args.json else shown("\n".join(describe(reply))), flush=True)
            if every_s is None:
                return 0
            check()
            time.sleep(every_s)


def document(message: Message) -> dict[str, Any]:
    """Every field under its own name, numbers as numbers (protobuf's own JSON has 64-bit ones as text)."""
    result: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.message_type is None:
            result[field.name] = list(value) if field.is_repeated else value
        else:
            result[field.name] = [document(item) for item in value] if field.is_repeated else document(value)
    return result


def describe(reply: pb.ClusterStatusReply) -> list[str]:
    """The lines for people."""
    engine, routing = reply.engine, reply.routing
    lines = [
        f"{reply.model}, epoch {reply.epoch}, {_holders(reply)}, {reply.expert_numerics_id}, "
        f"build {reply.build_version}"
    ]
    if reply.HasField("engine"):
        lines.append(
            f"requests: {engine.running} run, {engine.waiting} wait; {engine.finished} finished, "
            f"{engine.failed} failed, {engine.aborted} aborted; {engine.tokens} tokens; "
            f"KV pages {engine.kv_pages_used} of {engine.kv_pages}"
        )
    if reply.workers:
        lines.append(
            f"routing: {routing.messages} messages, {routing.failovers} sent again ({routing.timeouts} late), "
            f"{routing.hedges} hedged ({routing.hedges_won} won), {routing.refusals} refused, "
            f"{routing.bad_replies} bad, {routing.ejections} ejections, {routing.waits_for_holder} waits; "
            f"since the start the busiest worker was sent {routing.balance:.2f} times the mean of rows"
        )
        lines += _table(reply)
    lines.append(f"change: {reply.change or 'none'}")
    if reply.HasField("rebalance"):
        info = reply.rebalance
        state = "on" if info.active else "off"
        found = f"at the last look: {info.last}" if info.last else "no look yet"
        lines.append(f"rebalancing: {info.mode}, now {state}; {_count(info.changes, 'change')}; {found}")
    if reply.log_lines_dropped:
        lines.append(
            f"log: {_count(reply.log_lines_dropped, 'line')} missing, which nobody read or no disk took"
        )
    if reply.last_change_error:
        lines.append(f"last error: {reply.last_change_error}")
    if reply.kept_trouble:
        lines.append(f"decisions are NOT kept for the next start: {reply.kept_trouble}")
    elif reply.kept_in:
        lines.append(f"decisions are kept for the next start in {reply.kept_in}")
    for worker in reply.workers:
        if worker.held:
            lines.append(f"{worker.name} holds {' '.join(worker.held)}")
    for index, layer in enumerate(reply.layers):
        lines.append(f"layer {index}: {' '.join(map(str, layer.rows))} rows")
    return lines


def _table(reply: pb.ClusterStatusReply) -> list[str]:
    from colibri.cluster.machine.cpu_list import format_cpu_list
    from colibri.deployment.sizes import size

    rows = [list(_COLUMNS)]
    for worker in reply.workers:
        rows.append(
            [
                worker.name,
                worker.state,
                worker.health,
                worker.link or "-",
                str(worker.incarnation),
                str(worker.pid),
                format_cpu_list(worker.cpus) + (" shared" if worker.oversubscribed else "") or "-",
                _node(worker),
                str(worker.experts),
                size(worker.weight_bytes),
                str(worker.rows_done),
                str(worker.queued),
                _milliseconds(worker.oldest_queued_us),
                _milliseconds(worker.latency_p50_us),
                _milliseconds(worker.latency_p99_us),
                str(worker.deaths),
                f"{worker.uptime_s:.0f} s",
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines += [f"{worker.name}: {text}" for worker in reply.workers if (text := _arrival(worker))]
    lines += [
        f"{worker.name}: CROSSES NUMA NODES: {worker.crossing}" for worker in reply.workers if worker.crossing
    ]
    for worker in reply.workers:
        lines += [f"{worker.name}: {text}" for text in _reasons(worker)]
    return lines


def _reasons(worker: pb.WorkerInfo) -> Iterator[str]:
    """Why it is as it is, and what happened to it last."""
    if worker.reason:
        yield f"{worker.state}: {worker.reason}"
    if worker.health_reason:
        yield f"{worker.health} to the router: {worker.health_reason}"
    if worker.last_error and worker.last_error not in worker.reason:
        yield f"its last end: {worker.last_error}"
    if worker.mends:
        yield f"put right {_count(worker.mends, 'time')} without a restart, the last time since {worker.last_mend}"


def _holders(reply: pb.ClusterStatusReply) -> str:
    """Copies wanted for redundancy, and those that there are: load adds some, absence takes some."""
    least, most = reply.holders_least, reply.holders_most
    if not most or least == most == reply.replicas:
        return f"{_count(reply.replicas, 'holder')} per expert"
    there = f"{least}" if least == most else f"{least} to {most}"
    return f"{there} holders per expert ({reply.replicas} wanted)"


def _arrival(worker: pb.WorkerInfo) -> str:
    """How far its weights are on their way to it; empty when nothing came from elsewhere and none is to come."""
    from colibri.deployment.sizes import size

    parts = []
    if worker.load_total:
        parts.append(f"{worker.load_done} of {worker.load_total} experts loaded")
    if worker.bytes_fetched:
        parts.append(f"{size(worker.bytes_fetched)} fetched")
    return ", ".join(parts)


def _node(worker: pb.WorkerInfo) -> str:
    """Of its memory; with shares where its weights lie elsewhere."""
    pages = {item.node: item.pages for item in worker.weight_pages if item.node >= 0}
    if not pages or set(pages) == {worker.numa_node}:
        return str(worker.numa_node) if worker.numa_node >= 0 else "-"
    total = sum(pages.values())
    return " ".join(f"{node}:{100 * count // total}%" for node, count in sorted(pages.items()))


def _milliseconds(microseconds: float) -> str:
    return f"{microseconds / 1000:.2f} ms" if microseconds else "-"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
