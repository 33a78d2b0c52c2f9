"""A real `colibri serve` with real workers: how bad input is thrown at it, and how one sees that it took no harm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from colibri.errors import Code
from colibri.grpc_options import channel_options
from colibri.security.channel import ChannelSecurity
from colibri.security.plane_secret import PlaneSecret
from colibri.transport.grpc_stream import EXCHANGE_METHOD
from colibri.v1 import expert_pb2, expert_pb2_grpc, generation_pb2, generation_pb2_grpc
from colibri.wire.frame import read_frame
from tests.integration.bad_input.folders import good
from tests.support.clusters import answer, deployed, is_alive
from tests.support.serving import Serving, serving

SECRET = "secret"
#: Prompt of the good request.
PROMPT = (5, 9, 299, 42, 42, 7, 199, 23, 11)
#: Bound of every single call.
WAIT_S = 30.0
#: Above any message that a server here accepts, so that the server is asked and not this client's own limit.
MAX_CLIENT_BYTES = 64 << 20
STREAMING = frozenset(
    ("/colibri.v1.Generation/Generate", "/colibri.v1.Expert/Load", "/colibri.v1.Expert/Attach")
)


@dataclass(frozen=True, slots=True)
class Reply:
    """How a call ended. `message`: the error's text, or what was answered."""

    code: Code | None
    message: str


class Live:
    """`expected`: receipts of the good request, as one process alone computes them."""

    def __init__(self, serve: Serving, folder: Path, model: Path, expected: Sequence[int]) -> None:
        self.serve = serve
        self.model = model
        self.expected = list(expected)
        self.channel = grpc.insecure_channel(serve.target, options=channel_options(MAX_CLIENT_BYTES))
        self.stub: generation_pb2_grpc.GenerationStub = generation_pb2_grpc.GenerationStub(self.channel)
        self.workers = serve.workers()
        self._secret = PlaneSecret.read(folder / SECRET, "--worker-secret-file")
        self.worker_targets = sorted(f"unix:{path}" for path in folder.glob("colibri-run-*/*.sock"))

    def worker_channel(self) -> grpc.Channel:
        """To the first worker, with the deployment's secret: what comes of a caller who has it must do no harm."""
        security = ChannelSecurity(secret=self._secret)
        return security.open(self.worker_targets[0], channel_options(MAX_CLIENT_BYTES))

    def good_request(self) -> generation_pb2.GenerateRequest:
        request = generation_pb2.GenerateRequest()
        request.token_ids.ids.extend(PROMPT)
        request.stopping.max_tokens = len(self.expected)
        request.stopping.ignore_eos = True
        request.sampling.temperature = 0
        return request

    def receipts(self) -> list[int]:
        """Of an answer to the good request; raises grpc.RpcError."""
        found: list[int] = []
        for reply in self.stub.Generate(self.good_request(), timeout=WAIT_S):
            found += reply.tokens.receipts
        return found

    def harm(self) -> str:
        """Empty where every process of before lives and the good request is answered, bit for bit."""
        if self.serve.process.poll() is not None:
            return f"the server ended: {self.serve.err.read_text()[-2000:]}"
        dead = [pid for pid in self.workers if not is_alive(pid)]
        if dead or self.serve.workers() != self.workers:
            return f"workers {dead} died: {self.serve.err.read_text()[-2000:]}"
        try:
            found = self.receipts()
        except grpc.RpcError as error:
            return f"the good request failed: {error.code()} {error.details()}"
        return "" if found == self.expected else f"the good request's receipts differ: {found}"

    def call(
        self,
        method: str,
        request: bytes,
        *,
        timeout_s: float = WAIT_S,
        channel: grpc.Channel | None = None,
        compression: grpc.Compression | None = None,
    ) -> Reply:
        """One call with these very bytes."""
        where = channel or self.channel
        try:
            if method in STREAMING:
                streaming: Any = where.unary_stream(method)
                stream = streaming(request, timeout=timeout_s, compression=compression)
                return Reply(None, f"was answered with {sum(1 for _ in stream)} messages")
            unary: Any = where.unary_unary(method)
            reply = unary(request, timeout=timeout_s, compression=compression)
            return Reply(None, f"was answered with {len(reply)} bytes")
        except grpc.RpcError as error:
            return Reply(Code(error.code().name), error.details() or "")

    def exchange(self, channel: grpc.Channel, frames: Sequence[bytes]) -> tuple[int | None, Reply]:
        """Sends frames to a worker: the kind of its first answer and what that says, or None and the stream's end."""
        try:
            exchange: Any = channel.stream_stream(EXCHANGE_METHOD)
            answers = exchange(iter(frames), timeout=WAIT_S)
            for answer_ in answers:
                header = read_frame(answer_).header
                answers.cancel()
                return header.kind, Reply(None, header.error_message)
        except grpc.RpcError as error:
            return None, Reply(Code(error.code().name), error.details() or "")
        return None, Reply(None, "was not answered")

    def resident(self) -> dict[str, int]:
        """'rss PID' -> resident bytes, of the server and its workers."""
        return {f"rss {pid}": rss_of(pid) for pid in (self.serve.process.pid, *self.workers)}

    def close(self) -> None:
        self.channel.close()


def rss_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


def open_fds(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


@contextlib.contextmanager
def live(folder: Path, *options: str) -> Iterator[Live]:
    """`folder`: an empty one, for the model and the sockets. Nothing moves experts: the frames name an epoch, which a
    move would end."""
    model = good(folder / "model")
    with deployed(model, 0) as oracle:
        expected = answer(oracle, PROMPT, max_tokens=12).receipts
    with (
        serving(
            model,
            folder,
            "--workers=2",
            "--link=grpc",
            "--kv-tokens=8192",
            "--rebalance=off",
            f"--worker-secret-file={folder / SECRET}",
            *options,
        ) as serve,
        contextlib.closing(Live(serve, folder, model, expected)) as found,
    ):
        yield found


def status_of(channel: grpc.Channel) -> expert_pb2.StatusReply:
    """A worker's own account."""
    stub: expert_pb2_grpc.ExpertStub = expert_pb2_grpc.ExpertStub(channel)
    return stub.Status(expert_pb2.StatusRequest(), timeout=WAIT_S)
