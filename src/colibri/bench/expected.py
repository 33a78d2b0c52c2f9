"""Find the expected answers for an oracle: in the file that keeps them, the rest from an engine without workers."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from colibri.bench.load.oracle import AnswerFile, ExpectedAnswer, Judge, Oracle, decode_answer
from colibri.bench.load.targets.colibri_grpc import to_message
from colibri.bench.load.workload import LoadRequest
from colibri.errors import ConfigError, NumericsMismatch, WorkerLost

#: Longest silence of the engine: it loads, or it computes an answer.
_SILENT_S = 1800.0
_STDERR_BYTES = 4000


@dataclass(frozen=True, slots=True)
class OracleSource:
    """model: the checkpoint that the server serves. cache: file of answers. threads: None: the machine's."""

    model: Path
    cache: Path
    backend: str = "cpu"
    threads: int | None = None


def default_cache(home: Path, model_hash: str) -> Path:
    """Returns the file of a model under Colibri's home."""
    return home / "oracle" / f"{model_hash[:32]}.jsonl"


def expected_answers(
    source: OracleSource,
    judge: Judge,
    compute_mode: str,
    requests: Iterable[LoadRequest],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Oracle:
    """Returns an oracle that knows the answers to `requests`.

    progress: called with (answers computed, all).

    Raises NumericsMismatch if, by their ids, the engine here computes other bits than the judged server;
    ColibriError if it fails.
    """
    file = AnswerFile(source.cache)
    oracle = Oracle(judge, file.read())
    missing = oracle.missing(requests)
    if missing:
        # Also the work of a run that is interrupted is kept.
        for done, (request, answer) in enumerate(_compute(source, judge, compute_mode, missing)):
            file.append([(oracle.add(request, answer), answer)])
            progress(done + 1, len(missing))
    return oracle


def _compute(
    source: OracleSource, judge: Judge, compute_mode: str, requests: Sequence[LoadRequest]
) -> Iterable[tuple[LoadRequest, ExpectedAnswer]]:
    settings = {
        "model": str(source.model),
        "compute_mode": compute_mode,
        "router_precision": "int16" if judge.engine_numerics_id.endswith("/gate=int16") else "fp32",
        "backend": source.backend,
        "threads": source.threads,
    }
    lines = [json.dumps(settings)]
    lines += [base64.b64encode(to_message(request).SerializeToString()).decode() for request in requests]
    with tempfile.TemporaryFile("w+") as asked, tempfile.TemporaryFile("w+b") as complaints:
        asked.write("\n".join(lines) + "\n")
        asked.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-m", "colibri.bench.oracle_engine"],
            stdin=asked,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        )
        try:
            head = _line(child, complaints)
            _check(judge, head)
            for request in requests:
                yield request, decode_answer(_line(child, complaints))
        finally:
            child.kill()
            child.wait()
            if child.stdout is not None:
                child.stdout.close()


def _line(child: subprocess.Popen[str], complaints: IO[bytes]) -> dict[str, object]:
    """The engine's next line. Raises WorkerLost after _SILENT_S or at its end, with its last words."""
    if child.stdout is None:
        raise RuntimeError("the engine's output is a pipe")
    timer = threading.Timer(_SILENT_S, child.kill)
    timer.daemon = True
    timer.start()
    try:
        line = child.stdout.readline()
    finally:
        timer.cancel()
    if line:
        document: dict[str, object] = json.loads(line)
        return document
    child.wait()
    complaints.seek(max(0, complaints.seek(0, os.SEEK_END) - _STDERR_BYTES))
    words = complaints.read().decode("utf-8", "replace").strip()
    raise WorkerLost(f"the oracle's engine ended with code {child.returncode}: {words}", peer="oracle")


def _check(judge: Judge, head: dict[str, object]) -> None:
    if head.get("model_hash") != judge.model_hash:
        raise ConfigError(
            "--oracle", f"the model that is served ({judge.model_hash})", str(head.get("model_hash"))
        )
    if head.get("engine_numerics_id") != judge.engine_numerics_id:
        raise NumericsMismatch(
            f"the server computes as {judge.engine_numerics_id}, the oracle as {head.get('engine_numerics_id')}"
        )
