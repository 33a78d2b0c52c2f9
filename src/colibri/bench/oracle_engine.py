"""The engine that tells what answers must be: `python -m colibri.bench.oracle_engine`, a child process.

Reads lines from stdin: a JSON object of options (model, compute_mode, router_precision, backend, threads), then a
GenerateRequest each, in base64. Writes lines of JSON to stdout: what computes, then an answer per request, in
their order. No workers and no gRPC: the engine of `--workers 0`. A process of its own, so that its memory and
its threads are gone before the load begins.
"""

from __future__ import annotations

import base64
import json
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from colibri.bench.load.oracle import ExpectedAnswer, encode_answer
from colibri.coordinator.engine import EngineOptions
from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.validation.requests import Draws, to_request
from colibri.deadline import Deadline
from colibri.deployment.assemble import assemble
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.running import Deployment
from colibri.errors import ColibriError
from colibri.generation import Finished, Tokens
from colibri.v1 import generation_pb2 as pb

#: Requests computed together, and those that wait behind them.
_RUNNING = 8
_WAITING = 8
_PAGE = 16


def main() -> int:
    settings = json.loads(sys.stdin.readline())
    messages = [pb.GenerateRequest.FromString(base64.b64decode(line)) for line in sys.stdin]
    try:
        options = DeploymentOptions(
            model=Path(settings["model"]),
            workers=0,
            compute_mode=settings["compute_mode"],
            router_precision=settings["router_precision"],
            backend=settings["backend"],
            threads=settings["threads"],
            engine=_room(messages),
        )
        with assemble(options, _log) as deployment:
            model, numerics = deployment.model, deployment.numerics
            _tell({"model_hash": model.weights_hash, "engine_numerics_id": numerics.id})
            for answer in _answers(deployment, messages):
                _tell(encode_answer(answer))
    except ColibriError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _room(messages: Sequence[pb.GenerateRequest]) -> EngineOptions:
    """A cache that holds the longest requests side by side."""
    longest = max((len(m.token_ids.ids) + m.stopping.max_tokens for m in messages), default=1)
    room = _RUNNING * (-(-longest // _PAGE) * _PAGE)
    return EngineOptions(kv_page=_PAGE, kv_tokens=room, max_running=_RUNNING, max_queued=_WAITING)


def _answers(deployment: Deployment, messages: Sequence[pb.GenerateRequest]) -> Iterator[ExpectedAnswer]:
    """In order; a few are always submitted ahead, so that they are computed together."""
    ahead: deque[RequestHandle] = deque()
    for number, message in enumerate(messages):
        draws = Draws(seed=lambda: 0, request_id=f"oracle-{number}".strip)
        request = to_request(message, deployment.limits, deployment.tokenizer, Deadline(), draws)
        if len(ahead) == _RUNNING + _WAITING:
            yield _read(ahead.popleft())
        ahead.append(deployment.engine.submit(request))
    while ahead:
        yield _read(ahead.popleft())


def _read(handle: RequestHandle) -> ExpectedAnswer:
    ids: list[int] = []
    receipts: list[int] = []
    reason = ""
    for event in handle.events():
        if isinstance(event, Tokens):
            ids += event.ids
            receipts += event.receipts
        elif isinstance(event, Finished):
            reason = event.reason.name.lower()
    return ExpectedAnswer(tuple(ids), tuple(receipts), reason)


def _tell(document: object) -> None:
    print(json.dumps(document), flush=True)


def _log(line: str) -> None:
    print(line, file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
