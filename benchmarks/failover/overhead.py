"""What replicas, hedging and health cost when nothing fails: alternated arms of two deployments that both stay
up."""

from __future__ import annotations

import contextlib
import statistics

from benchmarks.failover.speed import measure as measure_speed
from benchmarks.table import Outcome
from colibri.bench.chaos.plan import ServeSpec
from colibri.bench.chaos.run import model_folder
from colibri.bench.chaos.serving import serve_command, serving

#: Many short rounds: this machine's speed drifts by a few percent within a minute.
ROUNDS = 16
WARM_S, ROUND_S = 1.0, 4.0
SEED = 20260507


def measure(rounds: int = ROUNDS, round_s: float = ROUND_S, model: str = "demo") -> Outcome:
    """The median of the paired ratios."""
    folder = model_folder(model)
    arms = {
        "all": ServeSpec(model, 4, 2),
        "none": ServeSpec(model, 4, 1, ("--no-hedge",)),
    }
    found: dict[str, list[float]] = {name: [] for name in arms}
    failed = 0
    with contextlib.ExitStack() as stack:
        servers = {
            name: stack.enter_context(serving(_plain(serve_command(folder, spec))))
            for name, spec in arms.items()
        }
        for index in range(rounds + 1):
            for name in list(arms) if index % 2 == 0 else list(arms)[::-1]:
                speed = measure_speed(servers[name].target, WARM_S, round_s, SEED)
                failed += speed.failed
                if index:  # the first round warms caches and the router's own latencies
                    found[name].append(speed.tokens_s)
    ratios = sorted(a / b for a, b in zip(found["all"], found["none"], strict=True))
    ratio = statistics.median(ratios)
    told = {name: statistics.median(values) for name, values in found.items()}
    return Outcome(
        f"{(1 - ratio) * 100:.1f} % fewer tokens/s ({told['all']:.1f} against {told['none']:.1f},"
        f" {rounds} paired rounds of {(1 - ratios[-1]) * 100:.0f} to {(1 - ratios[0]) * 100:.0f} %, seed {SEED})",
        ratio >= 0.98 and not failed,
        "--replicas 1 --no-hedge",
        {"all": found["all"], "none": found["none"], "failed": failed},
    )


def _plain(command: list[str]) -> list[str]:
    return [word for word in command if word != "--allow-faults"]
