"""`Colibri`: a model and its workers, started by a Python program and asked within it."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self, Unpack

from colibri.api.deployment_thread import DeploymentThread
from colibri.api.streams import AsyncStream, Reading, Stream
from colibri.client.answer import Answer
from colibri.client.messages import to_chat, to_request
from colibri.client.options import Message, PromptLike, RequestOptions
from colibri.coordinator.engine import EngineOptions
from colibri.deployment.cluster import ClusterOptions
from colibri.deployment.in_process import InProcess
from colibri.deployment.model_name import find_model
from colibri.deployment.options import DeploymentOptions
from colibri.deployment.pinning import PinningOptions
from colibri.deployment.reports import Log, Progress, no_progress, to_logging
from colibri.errors import ColibriError, InvalidInput, ShuttingDown
from colibri.generation import Chat
from colibri.transport.link import LinkKind
from colibri.v1 import generation_pb2 as pb

#: Usual seconds for a whole answer.
TIMEOUT_S = 600.0
#: Spelled otherwise here than on the command line.
_OPTIONS = {
    "--allow-cross-node": "pinning.cross_node",
    "--cpu-locks": "pinning.locks",
    "--cpu-threads": "pinning.cpu_threads",
    "--device": "pinning.devices",
    "--dma-buffer-size": "cluster.gpu.dma_buffer_bytes",
    "--experts-on": "cluster.experts_on",
    "--gpu-block-size": "cluster.gpu.block_size",
    "--int4-on": "cluster.gpu.int4_on",
    "--numa-node": "pinning.numa_nodes",
    "--share-cpus": "pinning.share",
    "--start-timeout": "start_timeout_s",
    "--worker-backend": "cluster.backends",
}


class Colibri:
    """A model with its workers, which are processes of this machine. It answers until it is closed.

    It closes at the end of a `with` block, by `close()`, when nothing refers to it any more, or at the interpreter's
    exit; its workers end with it, also when this process is killed. Any thread may ask, also one that runs an event
    loop, as in a notebook. Answers have the bits of `colibri generate` and of `colibri serve`.

    model: folder of a checkpoint or pack, the URL of a pack, or "demo", the demo model, which is built once.
    workers: worker processes, 0 to 256; 0: all experts in this process. None: 2, or one for each GPU by `pinning`.
    replicas: workers that hold each expert, at most `workers`. With 2, the death of a worker costs no load.
    compute_mode: "fp32" or "bf16". None: bf16 for bf16 checkpoints and their packs, else fp32.
    router_precision: what orders gate logits: "fp32", or "int16" scaled to the largest of the row.
    backend: "cpu" or "reference".
    threads: compute threads of each process. None: its share of the CPUs.
    transport: how workers are reached: "unix" or "tcp".
    link: what carries rows to them: "auto", "grpc" or "shared-memory".
    engine: sizes of the KV cache and of a step. None: the usual ones.
    pinning: where workers run. None: anywhere, on the same CPUs where there are too few.
    cluster: how workers are protected, replaced and balanced. None: as usual.
    mixed_numerics: let GPUs and CPUs serve together, each expert on one kind for good.
    start_timeout_s: seconds until a worker's process must answer. None: 60, and 10 more for each worker.
    log: takes lines for operators. By default the logger `colibri.deployment` gets them, at level INFO.
    progress: told of what is being loaded: the task, how many units of it are done, and of how many.

    Raises InvalidInput for a value out of range, CheckpointError for a model that cannot be read, WorkerLost and other
    ColibriErrors for a start that fails, and then leaves nothing running.
    """

    def __init__(
        self,
        model: Path | str,
        workers: int | None = None,
        *,
        replicas: int = 1,
        compute_mode: str | None = None,
        router_precision: str = "fp32",
        backend: str = "cpu",
        threads: int | None = None,
        transport: str = "unix",
        link: str = "auto",
        engine: EngineOptions | None = None,
        pinning: PinningOptions | None = None,
        cluster: ClusterOptions | None = None,
        mixed_numerics: bool = False,
        start_timeout_s: float | None = None,
        log: Log = to_logging,
        progress: Progress = no_progress,
    ) -> None:
        try:
            options = DeploymentOptions(
                model=find_model(model, progress),
                workers=workers,
                replicas=replicas,
                compute_mode=compute_mode,
                router_precision=router_precision,
                backend=backend,
                threads=threads,
                transport=transport,
                link=_link(link),
                engine=engine or EngineOptions(),
                cluster=cluster or ClusterOptions(),
                pinning=pinning or PinningOptions(share=True),
                mixed_numerics=mixed_numerics,
                start_timeout_s=start_timeout_s,
            )
            keeper = DeploymentThread(options, log, progress)
            self._deployment = keeper.start()
        except ColibriError as error:
            raise _in_python_words(error) from None
        limits = options.engine
        # As many as the engine takes at once: each waits for one stream.
        threads_of_streams = ThreadPoolExecutor(
            limits.max_running + limits.max_queued, thread_name_prefix="colibri-stream"
        )
        self._threads = threads_of_streams
        self._requests = InProcess(self._deployment)
        self._close = weakref.finalize(self, _close, self._requests, keeper, threads_of_streams)

    @property
    def workers(self) -> list[str]:
        """Names of the workers; empty where all experts are in this process."""
        return self._deployment.worker_names

    @property
    def engine_numerics_id(self) -> str:
        """What decides the bits of answers, as every receipt's answer tells it."""
        return self._deployment.numerics.id

    def generate(
        self, prompt: PromptLike, *, timeout_s: float = TIMEOUT_S, **options: Unpack[RequestOptions]
    ) -> Answer:
        """Returns the whole answer to a text, to token ids or to a Chat.

        timeout_s: seconds for the whole answer.
        options: as RequestOptions explains them, with n = 1: several answers come from `stream(...).answers()`.

        Raises InvalidInput for a request that does not fit the model, Busy where too many wait, DeadlineExpired
        after `timeout_s`, and ShuttingDown once this Colibri is closed.
        """
        _check_one(options)
        return self.stream(prompt, timeout_s=timeout_s, **options).answer()

    def stream(
        self, prompt: PromptLike, *, timeout_s: float = TIMEOUT_S, **options: Unpack[RequestOptions]
    ) -> Stream:
        """As `generate`, but returns the events of the answer as they come. `text()` of it yields text alone."""
        request = to_request(prompt, **options)
        return Stream(self._start(request, timeout_s), request.request_id)

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        timeout_s: float = TIMEOUT_S,
        **options: Unpack[RequestOptions],
    ) -> Answer:
        """As `generate`, for the next message of a conversation, under the checkpoint's chat template.

        messages: ChatMessages, or objects with role and content; a text is a user's message.
        """
        return self.generate(_chat(messages), timeout_s=timeout_s, **options)

    def stream_chat(
        self,
        messages: str | Sequence[Message],
        *,
        timeout_s: float = TIMEOUT_S,
        **options: Unpack[RequestOptions],
    ) -> Stream:
        """As `chat`, but returns the events of the answer as they come."""
        return self.stream(_chat(messages), timeout_s=timeout_s, **options)

    async def agenerate(
        self, prompt: PromptLike, *, timeout_s: float = TIMEOUT_S, **options: Unpack[RequestOptions]
    ) -> Answer:
        """As `generate`, for asyncio. Cancelling the task aborts the answer."""
        _check_one(options)
        return await self.astream(prompt, timeout_s=timeout_s, **options).answer()

    def astream(
        self, prompt: PromptLike, *, timeout_s: float = TIMEOUT_S, **options: Unpack[RequestOptions]
    ) -> AsyncStream:
        """As `stream`, for asyncio: read it with `async for`. The request is sent with the first read."""
        request = to_request(prompt, **options)
        return AsyncStream(lambda: self._start(request, timeout_s), self._threads, request.request_id)

    async def achat(
        self,
        messages: str | Sequence[Message],
        *,
        timeout_s: float = TIMEOUT_S,
        **options: Unpack[RequestOptions],
    ) -> Answer:
        """As `chat`, for asyncio. Cancelling the task aborts the answer."""
        return await self.agenerate(_chat(messages), timeout_s=timeout_s, **options)

    def astream_chat(
        self,
        messages: str | Sequence[Message],
        *,
        timeout_s: float = TIMEOUT_S,
        **options: Unpack[RequestOptions],
    ) -> AsyncStream:
        """As `stream_chat`, for asyncio."""
        return self.astream(_chat(messages), timeout_s=timeout_s, **options)

    def close(self) -> None:
        """Ends running answers with ShuttingDown, then the workers. Closing again does nothing.

        Raises ColibriError, naming what did not end in time.
        """
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, request: pb.GenerateRequest, timeout_s: float) -> Reading:
        if not self._close.alive:
            raise ShuttingDown("this Colibri is closed")
        if not 0 < timeout_s <= 1e6:
            raise InvalidInput("timeout_s", "seconds above 0, up to 1000000", timeout_s)
        return Reading(self._requests.submit(request, timeout_s), timeout_s)


def _close(requests: InProcess, keeper: DeploymentThread, threads: ThreadPoolExecutor) -> None:
    try:
        requests.close()
    finally:
        try:
            keeper.close()
        finally:
            threads.shutdown(wait=False)


def _chat(messages: str | Sequence[Message]) -> Chat:
    return to_chat([{"role": "user", "content": messages}] if isinstance(messages, str) else messages)


def _check_one(options: RequestOptions) -> None:
    if options.get("n", 1) != 1:
        raise InvalidInput("n", "1; several answers come from stream(...).answers()", options["n"])


def _link(name: str) -> LinkKind:
    kinds = [kind.value for kind in LinkKind]
    if name not in kinds:
        raise InvalidInput("link", f"one of {', '.join(kinds)}", repr(name))
    return LinkKind(name)


def _in_python_words(error: ColibriError) -> ColibriError:
    """Names options as this class does: those of the command line are what the parts below know."""
    error.message = re.sub(
        r"--[a-z][a-z0-9-]+",
        lambda found: _OPTIONS.get(found.group(), found.group()[2:].replace("-", "_")),
        error.message,
    )
    error.args = (error.message,)
    if isinstance(error, InvalidInput) and error.field.startswith("--"):
        error.field = _OPTIONS.get(error.field, error.field[2:].replace("-", "_"))
    return error
