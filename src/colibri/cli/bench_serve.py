"""Measure a server under load: latencies, throughput, goodput, and every answer against an oracle."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from colibri.cli import load_options, options
from colibri.cli.parser import integer, number
from colibri.cli.terminal import say
from colibri.whole_write import write_whole

if TYPE_CHECKING:
    from colibri.bench.load.oracle import Oracle
    from colibri.bench.load.result import RunResult
    from colibri.bench.load.whole import Load
    from colibri.bench.load.workload import LoadRequest


def add_arguments(parser: argparse.ArgumentParser) -> None:
    load_options.add_target(parser)
    load_options.add_arrivals(parser)
    load_options.add_requests(parser)
    parser.add_argument(
        "--goodput",
        nargs="+",
        default=argparse.SUPPRESS,
        metavar="SLO",
        help="bounds in ms that a request must meet: ttft:200 tpot:50 itl:100 (every gap) e2el:5000",
    )
    parser.add_argument(
        "--goodput-share",
        type=number(0, 1),
        default=argparse.SUPPRESS,
        metavar="SHARE",
        help="of the requests, that must meet them for exit code 0 (default: 1)",
    )
    parser.add_argument(
        "--oracle",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="MODEL",
        help="checkpoint of the served model: compare every token's receipt with an engine without workers",
    )
    parser.add_argument(
        "--oracle-cache",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="where expected answers are kept (default: in Colibri's home, a file per model)",
    )
    parser.add_argument(
        "--backend",
        choices=options.BACKENDS,
        default=argparse.SUPPRESS,
        help="the oracle's (default: cpu)",
    )
    parser.add_argument(
        "--threads",
        type=integer(1, 1024),
        default=argparse.SUPPRESS,
        metavar="N",
        help="the oracle's compute threads (default: all CPUs)",
    )
    parser.add_argument(
        "--max-lag",
        type=number(1e-3, 1e6),
        default=25.0,
        metavar="MS",
        help="p99 by which the generator itself may run late in a valid run",
    )
    parser.add_argument(
        "--percentiles", default="50,90,99,99.9", metavar="P,P,...", help="of each latency that is told"
    )
    parser.add_argument(
        "--records",
        type=Path,
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="write one JSON line per request: its times, tokens, receipts, error",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")


def run(args: argparse.Namespace) -> int:
    from colibri.bench.load.distribution import require_histograms
    from colibri.bench.load.metrics import measure
    from colibri.bench.load.report import Report, record_document
    from colibri.bench.load.slo import parse_slos
    from colibri.bench.load.targets.openai_http import require_httpx
    from colibri.bench.load.validity import ValidityBounds, judge_run
    from colibri.bench.load.whole import warm_up
    from colibri.cli.load_plan import read_load
    from colibri.errors import ConfigError

    require_histograms()
    if hasattr(args, "openai"):
        require_httpx()
    try:
        slos = parse_slos(getattr(args, "goodput", ()))
        percentiles = _percentiles(args.percentiles)
        bounds = ValidityBounds(lag_p99_s=args.max_lag / 1000)
        load = read_load(args)
    except ConfigError as error:
        print(f"{args.prog}: {error}", file=sys.stderr)
        return 2
    oracle = _oracle(args, load, load.known()) if hasattr(args, "oracle") else None
    warm_up(load, args.warmup, say)
    result, interrupted = _measured(load)
    if oracle is not None:
        # Nobody knew before how many requests there would be.
        requests = [record.request for record in result.records]
        if oracle.missing(requests):
            oracle = _oracle(args, load, requests)
    report = Report(
        metrics=measure(result, slos, percentiles),
        validity=judge_run(result, bounds),
        slos=slos,
        good_share=getattr(args, "goodput_share", 1.0),
        oracle=None if oracle is None else oracle.judge_all(result.records),
    )
    if args.json:
        print(json.dumps(_head(args, load, result) | report.document()))
    else:
        print("\n".join(report.lines()))
    if hasattr(args, "records"):  # last: when they cannot be written, the report is there
        lines = "".join(json.dumps(record_document(record)) + "\n" for record in result.records)
        write_whole(args.records, lines.encode())
    if interrupted:
        return 128 + signal.SIGINT
    return 1 if report.faults() else 0


def _percentiles(text: str) -> list[float]:
    from colibri.errors import ConfigError

    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0 < each <= 100 for each in found):
        raise ConfigError("--percentiles", "numbers above 0, up to 100, with commas", text)
    return found


def _oracle(args: argparse.Namespace, load: Load, requests: Sequence[LoadRequest]) -> Oracle:
    from colibri.bench.expected import OracleSource, default_cache, expected_answers
    from colibri.bench.load.oracle import Judge
    from colibri.cli.progress import Loading
    from colibri.deployment.model_name import find_model
    from colibri.models.home import colibri_home

    info = load.info
    if info is None:
        raise RuntimeError("an oracle judges a colibri server")
    cache = getattr(args, "oracle_cache", None) or default_cache(colibri_home(os.environ), info.model_hash)
    source = OracleSource(
        Path(find_model(args.oracle)), cache, getattr(args, "backend", "cpu"), getattr(args, "threads", None)
    )
    judge = Judge(info.model_hash, info.engine_numerics_id, info.eos_ids)
    with Loading() as loading:
        return expected_answers(
            source,
            judge,
            info.compute_mode,
            requests,
            lambda done, total: loading.update("oracle", done, total),
        )


def _measured(load: Load) -> tuple[RunResult, bool]:
    """The result, and whether it was interrupted before its end."""
    from colibri.bench.load.runner import LoadRun
    from colibri.bench.load.whole import SLACK_S
    from colibri.cli.load_progress import watch

    with LoadRun(load.make_target(), load.workload, load.arrivals, load.limits) as run:
        try:
            return watch(run, load.count(), load.bound_s()), False
        except KeyboardInterrupt:
            run.stop(0.0)
            result = run.wait(SLACK_S)
            say(f"interrupted: the report covers {result.duration_s:.1f} s")
            return result, True


def _head(args: argparse.Namespace, load: Load, result: RunResult) -> dict[str, object]:
    """What was measured, with the names of `vllm bench serve` where it has them."""
    info = load.info
    return {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "endpoint_type": "colibri" if info is not None else f"openai-{getattr(args, 'openai_form', 'ids')}",
        "target": args.target if info is not None else args.openai,
        "model_id": getattr(args, "openai_model", "default") if info is None else info.name,
        "model_hash": None if info is None else info.model_hash,
        "engine_numerics_id": None if info is None else info.engine_numerics_id,
        "request_rate": getattr(args, "rate", None) if getattr(args, "rate", None) != math.inf else "inf",
        "burstiness": getattr(args, "burstiness", 1.0) if hasattr(args, "rate") else None,
        "max_concurrency": getattr(args, "users", None),
        "max_concurrent_requests": result.peak_in_flight,
        "seed": args.seed,
    }
