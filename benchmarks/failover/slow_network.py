"""Tokens per second behind a slow network, against compute + layers x RTT + bytes / rate.

Compute is the step of the same deployment on the same network before it is made slow, so that what carries the
packets here is in both. A layer costs one round trip, since all workers are asked before any is awaited.
"""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.failover.speed import USERS, Speed
from benchmarks.failover.speed import measure as measure_speed
from benchmarks.table import Outcome
from colibri.bench.chaos.network.build import open_network, why_not
from colibri.bench.chaos.plan import LinkQuality, ServeSpec
from colibri.bench.chaos.run import model_folder
from colibri.bench.chaos.serving import serve_command, serving
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
    compute_s: float
    step_bytes: float
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

        def shape(worker: LinkQuality, hub: LinkQuality) -> None:
            network.shape_hub(hub)
            for name in names:
                network.shape(name, worker)

        def arm() -> tuple[Speed, float]:
            """And the bytes of a step."""
            carried: list[int] = []
            speed = measure_speed(
                server.target,
                WARM_S,
                round_s,
                SEED,
                lambda: carried.append(carried_bytes(network.layout.hub)),
            )
            return speed, (carried[1] - carried[0]) / (speed.tokens / USERS)

        measure_speed(server.target, WARM_S, 1.0, SEED)
        points = []
        for rtt_s in RTTS_S:
            # Each next to a run of its own without delay: the machine's speed drifts.
            shape(LinkQuality(), LinkQuality())
            base, step_bytes = arm()
            shape(LinkQuality(delay_s=rtt_s / 2, rate_bits=RATE_BITS), LinkQuality(rate_bits=RATE_BITS))
            found, _ = arm()
            predicted_s = base.step_s + layers * rtt_s + 8.0 * step_bytes / RATE_BITS
            points.append(Point(rtt_s, base.step_s, step_bytes, found.tokens_s, USERS / predicted_s))
    told = "; ".join(
        f"{p.rtt_s * 1e3:g} ms: {p.tokens_s:.1f} of {p.predicted_tokens_s:.1f} ({p.off:+.0%})" for p in points
    )
    compute_ms = ", ".join(f"{point.compute_s * 1e3:.1f}" for point in points)
    return Outcome(
        f"{told} tokens/s; compute {compute_ms} ms, {layers} layers, {points[0].step_bytes / 1e3:.0f} kB a step,"
        f" seed {SEED}",
        all(point.off >= -WITHIN for point in points),
        type(network).__name__,
        {"points": [asdict(point) for point in points]},
    )


def carried_bytes(device: str) -> int:
    """Over the coordinator's device so far, in both directions, with TCP and IP headers."""
    folder = Path("/sys/class/net") / device / "statistics"
    return int((folder / "tx_bytes").read_text()) + int((folder / "rx_bytes").read_text())
