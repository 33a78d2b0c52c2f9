"""Where answers come from: a running server, asked with the client library, or an engine of this process."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from colibri.deployment.phases import Phases

if TYPE_CHECKING:
    from colibri.client import Client, ModelInfo
    from colibri.coordinator.handle import RequestHandle
    from colibri.deployment.running import Deployment
    from colibri.generation import Event
    from colibri.v1 import generation_pb2 as pb


class Stream(Protocol):
    """The events of one answer. `close` before the end aborts it."""

    def __iter__(self) -> Iterator[Event]: ...

    def close(self) -> None: ...


class Source(Protocol):
    """model_hash, engine_numerics_id: of what answers; workers: by name; about: a line per process that computes."""

    @property
    def model_hash(self) -> str: ...

    @property
    def engine_numerics_id(self) -> str: ...

    @property
    def workers(self) -> list[str]: ...

    def start(self, request: pb.GenerateRequest, timeout_s: float) -> Stream: ...

    def abort(self, request_id: str) -> bool:
        """From any thread: the answer ends with Finished and ABORT at its next step. False: it is not running."""

    def spell(self, ids: Sequence[int]) -> list[str]:
        """How each token reads, escaped; empty without a tokenizer."""

    def about(self) -> list[str]: ...


class ServedSource:
    """A server, by a Client that outlives it."""

    def __init__(self, client: Client, info: ModelInfo) -> None:
        self._client = client
        self._info = info
        self.model_hash = info.model_hash
        self.engine_numerics_id = info.engine_numerics_id
        self.workers = list(info.workers)

    def start(self, request: pb.GenerateRequest, timeout_s: float) -> Stream:
        return self._client.send(request, timeout_s=timeout_s)

    def abort(self, request_id: str) -> bool:
        return self._client.abort(request_id)

    def spell(self, ids: Sequence[int]) -> list[str]:
        if not self._info.has_tokenizer:
            return ["" for _ in ids]
        known = {token: repr(self._client.detokenize([token])) for token in set(ids)}
        return [known[token] for token in ids]

    def about(self) -> list[str]:
        info = self._info
        workers = ", ".join(info.workers) or "none"
        return [
            f"server           {self._client.target}, {info.name}, {info.compute_mode}, workers {workers}"
        ]


class _LocalStream:
    def __init__(self, handle: RequestHandle) -> None:
        self._handle = handle

    def __iter__(self) -> Iterator[Event]:
        return self._handle.events()

    def close(self) -> None:
        self._handle.cancel()


class LocalSource:
    """An engine of this process. It uses no gRPC of its own. The deployment is its owner's."""

    def __init__(self, deployment: Deployment) -> None:
        from colibri.deployment.in_process import InProcess

        self._deployment = deployment
        self._requests = InProcess(deployment)
        self.engine_numerics_id = deployment.numerics.id
        self.workers = deployment.worker_names

    @property
    def model_hash(self) -> str:
        """Read only when it is wanted."""
        return self._deployment.model.weights_hash

    def start(self, request: pb.GenerateRequest, timeout_s: float) -> Stream:
        return _LocalStream(self._requests.submit(request, timeout_s))

    def abort(self, request_id: str) -> bool:
        return self._requests.abort(request_id)

    def spell(self, ids: Sequence[int]) -> list[str]:
        return [self._deployment.spell(token) for token in ids]

    def about(self) -> list[str]:
        from colibri.deployment.describe import describe

        return describe(self._deployment)

    def close(self) -> None:
        self._requests.close()


@contextlib.contextmanager
def open_source(args: argparse.Namespace, phases: Phases) -> Iterator[Source]:
    """As the options of request_options.add_where say. Raises ColibriError, and then leaves nothing running."""
    from colibri.cli.request_options import check_where

    check_where(args)
    phases.mark("process start")
    if hasattr(args, "target"):
        with served_source(args, phases) as source:
            yield source
    else:
        with local_source(args, args.model, phases) as source:
            yield source


@contextlib.contextmanager
def served_source(args: argparse.Namespace, phases: Phases) -> Iterator[ServedSource]:
    from colibri.cli.request_options import retry
    from colibri.cli.security_options import channel_security
    from colibri.cli.terminal import say
    from colibri.client import Client

    # An address where nobody is must be told at once, a server that was there may be waited for.
    security = channel_security(args)
    with Client(args.target, security=security) as first:
        info = first.model_info()
    told: list[str] = []

    def tell(error: Exception, wait_s: float) -> None:
        if str(error) not in told:
            told[:] = [str(error)]
            say(f"{args.prog}: {error}; asking again for up to {args.retry_within:g} s")

    with Client(args.target, retry=retry(args), on_retry=tell, security=security) as client:
        phases.mark("connected")
        yield ServedSource(client, info)


@contextlib.contextmanager
def local_source(args: argparse.Namespace, model: Path | str, phases: Phases) -> Iterator[LocalSource]:
    from colibri.cli import options
    from colibri.cli.assembled import assembled

    with (
        assembled(options.deployment_options(args, model), phases) as deployment,
        contextlib.closing(LocalSource(deployment)) as source,
    ):
        yield source
