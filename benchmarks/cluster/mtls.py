"""What mutual TLS costs a hop: the router's whole executor over gRPC and over shared memory, and a bare gRPC echo of as
many bytes, with and without it, all alternated in one run over loopback TCP, with workers that compute nothing."""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from benchmarks.hop import alternate, echo_arm, end_children, make_model, router_arms, start_child
from benchmarks.table import Line, Outcome
from colibri.security.authority import Authority
from colibri.security.channel import ChannelSecurity
from colibri.security.roles import Role

#: Rows of a message: a decode step's, and a prefill's.
ROWS = (1, 64)
#: Of each, workers started anew so often: a pair of processes keeps its luck with the scheduler for life.
LIVES = {1: 5, 64: 2}
ROUNDS, CALLS = 12, 100
MOST = 1.15
#: Of a row there and back (hidden 4096: bf16 there, fp32 back), and of a TLS record.
_ROW_BYTES, _RECORD = 4096 * (2 + 4), 16384


def lines() -> list[Line]:
    return [Line("mtls", "mTLS cost per hop (gRPC, loopback TCP)", "at most 15 %", measure)]


def measure(rounds: int = ROUNDS, calls: int = CALLS) -> Outcome:
    """The median of the paired ratios of rounds, for a decode step's message; a prefill's is told beside it."""
    told, detail = [], dict[str, object]()
    verdict = 0.0
    for rows in ROWS:
        pairs: dict[str, list[tuple[float, float]]] = {}
        for _ in range(LIVES[rows]):
            for kind, found in compare(rows, rounds, calls // (1 if rows == 1 else 3)).items():
                pairs.setdefault(kind, []).extend(found)
        for kind, both in pairs.items():
            ratio = statistics.median(tls / plain for plain, tls in both)
            plain, tls = (statistics.median(side) * 1e6 for side in zip(*both, strict=True))
            told.append(
                f"{kind} {rows} row{'s' if rows > 1 else ''} {ratio:.2f}x ({plain:.0f} -> {tls:.0f} us)"
            )
            detail[f"{kind} {rows}"] = {"ratio": ratio, "plain_us": plain, "mtls_us": tls, "pairs": both}
            if rows == ROWS[0] and kind != "bare echo":
                verdict = max(verdict, ratio)
    floors = {rows: cipher_s(rows * _ROW_BYTES) * 1e6 for rows in ROWS}
    detail["cipher alone, us"] = floors
    limit = "the same without TLS, alternated; the bare echo is what gRPC itself pays; cipher alone: "
    limit += ", ".join(f"{floor:.0f} us for {rows} row{'s' * (rows > 1)}" for rows, floor in floors.items())
    return Outcome(", ".join(told), verdict <= MOST, limit, detail)


def cipher_s(size: int, repeats: int = 200) -> float:
    """Seconds to encrypt and decrypt so many bytes in records, the median: AES-128-GCM, which TLS 1.3 settles on where
    CPUs have AES."""
    cipher, nonce = AESGCM(b"k" * 16), b"n" * 12
    records = [b"r" * min(_RECORD, size - at) for at in range(0, size, _RECORD)]
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for record in records:
            cipher.decrypt(nonce, cipher.encrypt(nonce, record, None), None)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def compare(rows: int, rounds: int, calls: int) -> dict[str, list[tuple[float, float]]]:
    """Arm -> by round, median seconds of a call without and with TLS."""
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
            request, reply = plain["sizes"]
            echo = start_child(children, "echo", "127.0.0.1:0", str(reply))
            secret = start_child(children, "echo", "127.0.0.1:0", str(reply), str(certs))
            arms = {
                "bare echo plain": echo_arm(echo, request),
                "bare echo TLS": echo_arm(secret, request, shown),
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
        for kind in ("gRPC", "shared memory", "bare echo")
    }


def _paired(plain: list[float], tls: list[float], calls: int) -> list[tuple[float, float]]:
    def medians(times: list[float]) -> list[float]:
        return [statistics.median(times[at : at + calls]) for at in range(0, len(times), calls)]

    return list(zip(medians(plain), medians(tls), strict=True))
