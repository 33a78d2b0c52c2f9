"""What mutual TLS costs a hop: the router's whole executor over gRPC and over shared memory, with and without it, the
four alternated in one run over loopback TCP, with two workers that compute nothing."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from pathlib import Path

from benchmarks.hop import alternate, end_children, make_model, router_arms, start_child
from benchmarks.table import Line, Outcome
from colibri.security.authority import Authority
from colibri.security.channel import ChannelSecurity
from colibri.security.roles import Role

#: Rows of a message: a decode step's, and a prefill's.
ROWS = (1, 64)
ROUNDS, CALLS = 20, 150
MOST = 1.15


def lines() -> list[Line]:
    return [Line("mtls", "mTLS cost per hop (gRPC, loopback TCP)", "at most 15 %", measure)]


def measure(rounds: int = ROUNDS, calls: int = CALLS) -> Outcome:
    """The median of the paired ratios of rounds, for the smaller message; the others are told beside it."""
    told, detail = [], dict[str, object]()
    worst = 0.0
    for rows in ROWS:
        for kind, (ratio, plain, tls) in compare(rows, rounds, calls // (1 if rows == 1 else 3)).items():
            told.append(
                f"{kind} {rows} row{'s' if rows > 1 else ''} {ratio:.2f}x ({plain:.0f} -> {tls:.0f} us)"
            )
            detail[f"{kind} {rows}"] = {"ratio": ratio, "plain_us": plain, "mtls_us": tls}
            worst = max(worst, ratio)
    return Outcome(", ".join(told), worst <= MOST, "the same without TLS, alternated", detail)


def compare(rows: int, rounds: int, calls: int) -> dict[str, tuple[float, float, float]]:
    """Arm -> paired ratio, medians in microseconds without and with TLS."""
    with tempfile.TemporaryDirectory(prefix="colibri-mtls-") as name:
        folder = Path(name)
        authority = Authority.create(folder / "certs", "benchmark", 100)
        authority.issue("worker", Role.WORKER, (), 100)
        authority.issue("router", Role.ROUTER, ("localhost",), 100)
        certs = authority.folder
        shown = ChannelSecurity(certs / "ca.pem", certs / "router.pem", certs / "router.key")
        model = make_model(folder / "model")
        children: list[subprocess.Popen[str]] = []
        try:
            plain = router_arms(start_child(children, "worker", "127.0.0.1:0", str(model)), model, rows)
            target = start_child(children, "worker", "127.0.0.1:0", str(model), str(certs))
            tls = router_arms(target, model, rows, shown)
            arms = {
                "gRPC plain": plain["executor"],
                "gRPC TLS": tls["executor"],
                "shared memory plain": plain["shared"],
                "shared memory TLS": tls["shared"],
            }
            times = alternate(arms, rounds, calls)
        finally:
            end_children(children)
    return {
        kind: _paired(times[f"{kind} plain"], times[f"{kind} TLS"], calls)
        for kind in ("gRPC", "shared memory")
    }


def _paired(plain: list[float], tls: list[float], calls: int) -> tuple[float, float, float]:
    def medians(times: list[float]) -> list[float]:
        return [statistics.median(times[at : at + calls]) for at in range(0, len(times), calls)]

    one, other = medians(plain), medians(tls)
    ratio = statistics.median(b / a for a, b in zip(one, other, strict=True))
    return ratio, statistics.median(one) * 1e6, statistics.median(other) * 1e6
