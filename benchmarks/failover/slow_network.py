"""Tokens per second behind a slow network, against compute + layers x RTT + bytes / rate.

Compute is the step of the same deployment on the same network before it is made slow, so that what carries the
packets here is in both. A layer costs one round trip, since all workers are asked before any is awaited.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.failover.speed import USERS
from benchmarks.failover.speed import measure as measure_speed
from benchmarks.table import Outcome
from colibri.chaos.network.build import open_network, why_not
from colibri.chaos.plan import LinkQuality, ServeSpec
from colibri.chaos.serving import serve_command, serving
from colibri.cli.chaos_run import model_folder
from colibri.models.checkpoint import Checkpoint

RTTS_S = (0.2e-3, 0.5e-3, 2e-3)
RATE_BITS = 1e9
WITHIN = 0.15
WARM_S, ROUND_S = 3.0, 8.0
SEED = 20260508
WORKERS = 4


@dataclass(frozen=True, slots=True)
class Point:
    rtt_s: float
    tokens_s: float
    predicted_tokens_s: float

    @property
    def off(self) -> float:
        """Below 0: slower than predicted."""
        return self.tokens_s / self.predicted_tokens_s - 1.0


def measure(round_s: float = ROUND_S, model: str = "demo") -> Outcome:
    if reason := why_not():
        raise RuntimeError(reason)
    folder = model_folder(model)
    layers = Checkpoint.open(folder).config.layers
    names = [f"w{index}" for index in range(WORKERS)]
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(open_network(names, LinkQuality(), shaped=True))
        command = serve_command(folder, ServeSpec(model, WORKERS, 2), network.layout.places)
        server = stack.enter_context(serving(command))
        carried: list[int] = []
        base = measure_speed(
            server.target, WARM_S, round_s, SEED, lambda: carried.append(carried_bytes(network.layout.hub))
        )
        step_bytes = (carried[1] - carried[0]) / (base.tokens / USERS)
        points = []
        network.shape_hub(LinkQuality(rate_bits=RATE_BITS))
        for rtt_s in RTTS_S:
            for name in names:
                network.shape(name, LinkQuality(delay_s=rtt_s / 2, rate_bits=RATE_BITS))
            found = measure_speed(server.target, WARM_S, round_s, SEED)
            wire_s = 8.0 * step_bytes / RATE_BITS
            predicted = USERS / (base.step_s + layers * rtt_s + wire_s)
            points.append(Point(rtt_s, found.tokens_s, predicted))
    told = "; ".join(
        f"{point.rtt_s * 1e3:g} ms: {point.tokens_s:.1f} of {point.predicted_tokens_s:.1f} ({point.off:+.0%})"
        for point in points
    )
    return Outcome(
        f"{told} tokens/s; compute {base.step_s * 1e3:.1f} ms, {layers} layers,"
        f" {step_bytes / 1e3:.0f} kB a step",
        all(point.off >= -WITHIN for point in points),
        type(network).__name__,
        {
            "compute_s": base.step_s,
            "step_bytes": step_bytes,
            "points": [[p.rtt_s, p.tokens_s, p.predicted_tokens_s] for p in points],
        },
    )


def carried_bytes(device: str) -> int:
    """Over the coordinator's device so far, in both directions, with TCP and IP headers."""
    folder = Path("/sys/class/net") / device / "statistics"
    return int((folder / "tx_bytes").read_text()) + int((folder / "rx_bytes").read_text())
