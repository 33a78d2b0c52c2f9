"""Tell whether this machine is fit to serve, and the command that mends what is not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from colibri.cli.checks.finding import Finding
    from colibri.cli.checks.machine import Machine

ABOUT = """
Nothing is changed. Each line is ok, warn (it works, but slower or less safely) or fail (it will not work); under a
warning or failure stands what it means and the command that mends it. Exit code 1 where anything fails.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen",
        action="append",
        default=argparse.SUPPRESS,
        metavar="ADDR",
        help="address that will be served, once for each (default: those of serve and router)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    from colibri.cli.checks.finding import Verdict
    from colibri.cli.checks.machine import Machine

    addresses = getattr(args, "listen", None) or ["127.0.0.1:50051", "127.0.0.1:50052"]
    findings = examine(Machine(), addresses)
    worst = max((finding.verdict for finding in findings), key=list(Verdict).index)
    if args.json:
        found = [asdict(finding) | {"verdict": finding.verdict.value} for finding in findings]
        print(json.dumps({"verdict": worst.value, "findings": found}))
    else:
        print("\n".join(report(findings)))
    return 1 if worst is Verdict.FAIL else 0


def examine(machine: Machine, addresses: Sequence[str]) -> list[Finding]:
    """Every check. One that cannot be made is a finding itself."""
    from colibri.cli.checks import graphics, limits, memory, network, processor, software, storage

    areas: list[tuple[str, Callable[[], Iterable[Finding]]]] = [
        (processor.AREA, lambda: processor.check(machine)),
        (memory.AREA, lambda: memory.check(machine)),
        (limits.AREA, lambda: limits.check(machine)),
        (graphics.AREA, lambda: graphics.check(machine)),
        (software.AREA, lambda: software.check(machine)),
        (network.AREA, lambda: network.check(machine, addresses)),
        (storage.AREA, lambda: storage.check(machine)),
    ]
    return [finding for area, check in areas for finding in _guarded(area, check)]


def _guarded(area: str, check: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    from colibri.cli.checks.finding import warn
    from colibri.errors import ColibriError

    try:
        yield from check()
    except (OSError, ValueError, ColibriError) as error:
        yield warn(area, "the rest", "cannot be looked at", f"{type(error).__name__}: {error}")


def report(findings: Sequence[Finding]) -> list[str]:
    """Lines for people, by area, and a last one that counts."""
    lines: list[str] = []
    area = ""
    for finding in findings:
        if finding.area != area:
            area = finding.area
            lines += ["", area] if lines else [area]
        note = f"  ({finding.why})" if finding.why and finding.verdict.value == "ok" else ""
        lines.append(f"  {finding.verdict.value:<4}  {finding.name:<26}  {finding.value}{note}")
        if finding.verdict.value != "ok":
            lines.append(f"        {finding.why}")
            if finding.mend:
                lines.append(f"        mend: {finding.mend}")
    counts = {
        word: sum(finding.verdict.value == word for finding in findings) for word in ("ok", "warn", "fail")
    }
    return [*lines, "", ", ".join(f"{count} {word}" for word, count in counts.items())]
