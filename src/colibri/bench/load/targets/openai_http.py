"""Target: any HTTP server that speaks OpenAI's streamed completions, so that peers pass the same harness.

Every chunk with text counts as one arrival; how many tokens it holds only the usage tells, which is asked
for. Such servers send no receipts.
"""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from colibri.bench.load.record import Failure, Recording, TargetFailure
from colibri.bench.load.targets.sse import SseDecoder
from colibri.errors import ColibriError, ConfigError, DeadlineExpired, FrameError, WorkerLost
from colibri.installation import extra_command

if TYPE_CHECKING:
    import httpx

#: Of an answer that is no stream: what an error message may take.
_MAX_ERROR_BYTES = 64 << 10
_DONE = "[DONE]"
#: Largest seed that all known servers take.
_SEEDS = 1 << 31


class PromptForm(enum.Enum):
    """IDS: completions, the prompt as token ids. TEXT: completions, as text. CHAT: chat completions, as one
    user's message."""

    IDS = "ids"
    TEXT = "text"
    CHAT = "chat"


def require_httpx() -> ModuleType:
    """Raises ConfigError naming the extra that brings it."""
    try:
        import httpx
    except ImportError as error:
        raise ConfigError("OpenAI target", f"the extra 'bench': {extra_command('bench')}", error) from error
    return httpx


class OpenAITarget:
    """url: up to and with the version, as in "http://host:8000/v1". in_flight: connections, at most.

    Extensions that vLLM and llama.cpp share (ignore_eos, top_k) are sent only where a request needs them.
    """

    def __init__(
        self, url: str, model: str, form: PromptForm, *, in_flight: int = 128, api_key: str | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url", "http://host:port/v1 or https://...", url)
        self._httpx = require_httpx()
        self._url = url.rstrip("/")
        self._path = "chat/completions" if form is PromptForm.CHAT else "completions"
        self._model = model
        self._form = form
        self._in_flight = in_flight
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client: httpx.AsyncClient | None = None

    async def open(self, timeout_s: float) -> None:
        httpx = self._httpx
        limits = httpx.Limits(max_connections=self._in_flight, max_keepalive_connections=self._in_flight)
        # No proxy from the environment: it would be measured, too.
        self._client = httpx.AsyncClient(headers=self._headers, limits=limits, trust_env=False)
        try:
            await self._client.get(f"{self._url}/models", timeout=timeout_s)  # any status: somebody is there
        except httpx.HTTPError as error:
            raise _lost(self._url, error) from None

    async def send(self, recording: Recording, timeout_s: float) -> None:
        if self._client is None:
            raise RuntimeError("open comes before send")
        httpx = self._httpx
        body = json.dumps(self._body(recording)).encode()
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream"}
        request = self._client.build_request(
            "POST", f"{self._url}/{self._path}", content=body, headers=headers, timeout=timeout_s
        )
        try:
            async with asyncio.timeout(timeout_s):
                recording.note_sent()
                response = await self._client.send(request, stream=True)
                try:
                    await self._read(response, recording)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise DeadlineExpired(f"{self._url}: no end within {timeout_s:g} s", peer=self._url) from None
        except httpx.TimeoutException as error:
            raise DeadlineExpired(f"{self._url}: {type(error).__name__}", peer=self._url) from None
        except httpx.HTTPError as error:
            raise _lost(self._url, error) from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _body(self, recording: Recording) -> dict[str, Any]:
        request = recording.request
        sampling = request.sampling
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": request.seed % _SEEDS,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if request.ignore_eos:
            body["ignore_eos"] = True
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if self._form is PromptForm.IDS:
            body["prompt"] = list(request.prompt_ids)
        elif request.prompt_text is None:
            raise ConfigError("prompt", "text: give the workload a tokenizer", "token ids alone")
        elif self._form is PromptForm.TEXT:
            body["prompt"] = request.prompt_text
        else:
            body["messages"] = [{"role": "user", "content": request.prompt_text}]
        return body

    async def _read(self, response: httpx.Response, recording: Recording) -> None:
        if response.status_code != 200:
            raise await self._refusal(response)
        kind = response.headers.get("content-type", "")
        if "text/event-stream" not in kind:
            raise FrameError(f"{self._url}: expected text/event-stream, got {kind!r}", peer=self._url)
        decoder = SseDecoder()
        async for piece in response.aiter_bytes():
            for data in decoder.feed(piece):
                if data == _DONE:
                    if not recording.finish_reason:
                        raise FrameError(f"{self._url}: [DONE] without a finish_reason", peer=self._url)
                    return
                self._take(data, recording)
        # Some servers end the stream without a word; an answer that was finished is whole.
        if not recording.finish_reason:
            raise WorkerLost(f"{self._url}: the stream ended without a finish_reason", peer=self._url)

    def _take(self, data: str, recording: Recording) -> None:
        try:
            chunk = json.loads(data)
            if chunk.get("error"):
                raise TargetFailure(Failure("stream error", str(chunk["error"])[:1000]))
            for choice in chunk.get("choices") or ():
                if _has_text(choice):
                    recording.note_chunk()
                if choice.get("finish_reason"):
                    recording.finish_reason = str(choice["finish_reason"])
            usage = chunk.get("usage")
            if usage:
                recording.prompt_tokens = int(usage["prompt_tokens"])
                recording.output_tokens = int(usage["completion_tokens"])
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = f"{self._url}: a chunk that is none ({error!r}): {data[:200]}"
            raise FrameError(text, peer=self._url) from None

    async def _refusal(self, response: httpx.Response) -> ColibriError:
        body = b""
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > _MAX_ERROR_BYTES:
                break
        status = response.status_code
        after = response.headers.get("retry-after", "")
        text = f"{self._url}: HTTP {status}: {body[:1000].decode('utf-8', 'replace')}"
        retry_after_s = float(after) if after.isdecimal() else None
        return TargetFailure(Failure(f"HTTP {status}", text, status in (429, 502, 503, 504), retry_after_s))


def _has_text(choice: Mapping[str, Any]) -> bool:
    """Text of a completion, or of a chat's delta: content, or what a model thinks before it."""
    delta = choice.get("delta") or {}
    return bool(
        choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")
    )


def _lost(url: str, error: Exception) -> ColibriError:
    return WorkerLost(f"{url}: {type(error).__name__}: {error}", peer=url)
