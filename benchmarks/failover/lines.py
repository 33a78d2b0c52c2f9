"""The lines of `make reach TOPIC=failover`, in the order of the table. Demo model, 4 workers, 2 holders of each
expert, 8 users, unless a line says otherwise."""

from __future__ import annotations

from functools import partial

from benchmarks.failover import overhead, plans, slow_network
from benchmarks.table import Line


def lines() -> list[Line]:
    return [
        Line(
            "kill",
            "kill -9 under load, 20 times",
            "0 failed, 0 wrong; largest gap at most quiet p99 ITL + 150 ms",
            plans.kill,
        ),
        Line(
            "silence",
            "SIGSTOP and links that pass nothing, 12 times each",
            "0 failed, 0 wrong; largest gap at most quiet p99 ITL + 400 ms",
            partial(plans.gaps, "silence"),
        ),
        Line("lone", "kill -9, no second holder, 20 times", "0 failed, 0 wrong; gap told", plans.lone),
        Line(
            "replies",
            "corrupt, truncated, misshapen, doubled, late and refused answers",
            "0 failed, 0 wrong, all counted",
            plans.replies,
        ),
        Line(
            "moves",
            "scale 2 -> 4 -> 2 and 20 random moves",
            "0 failed, 0 wrong; p99 ITL at most 2.5x quiet",
            plans.moves,
        ),
        Line(
            "overhead", "the price of all this when nothing fails", "at most 2 % tokens/s", overhead.measure
        ),
        Line(
            "forever",
            "200 kills and restarts in one run",
            "0 failed, 0 wrong; memory, fds, threads, shared memory flat; ids never reused",
            plans.forever,
        ),
        Line(
            "slow-network",
            "RTT 0.2, 0.5 and 2 ms at 1 Gbit",
            "within 15 % of compute + layers x RTT + bytes / rate",
            slow_network.measure,
        ),
    ]
