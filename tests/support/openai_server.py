"""A real HTTP server that streams completions as OpenAI's API does, and misbehaves on request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class OpenAIServer:
    """url: with /v1. bodies: of the requests so far. behave: how the next ones are answered: 'well', 'busy'
    (429), 'broken' (500), 'cut' (the stream ends early), 'error' (one inside the stream), 'nonsense',
    'no-stream', 'silent' (until `release`)."""

    url: str
    behave: str = "well"
    bodies: list[dict[str, Any]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)


@contextmanager
def openai_server() -> Iterator[OpenAIServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 0

        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self._whole(200, {"object": "list", "data": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.bodies.append(body)
            state.paths.append(self.path)
            state.keys.append(self.headers["Authorization"])
            if state.behave == "busy":
                return self._whole(429, {"error": {"message": "too many"}}, {"Retry-After": "2"})
            if state.behave == "broken":
                return self._whole(500, {"error": {"message": "it broke"}})
            if state.behave == "no-stream":
                return self._whole(200, {"choices": []})
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream; charset=utf-8")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            chat = self.path.endswith("/chat/completions")
            if chat:
                self._event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
            for number in range(body["max_tokens"]):
                if number == 1 and state.behave == "silent":
                    state.release.wait(20)
                if number == 2 and state.behave == "error":
                    self._event({"error": {"message": "out of memory"}})
                    return self._end()
                if number == 2 and state.behave == "nonsense":
                    self._event([1])
                    return self._end()
                if number == 2 and state.behave == "cut":
                    return self._end()
                text = f" {number}\u2028"
                self._event({"choices": [{"delta": {"content": text}} if chat else {"text": text}]})
            last: dict[str, object] = {"delta": {}} if chat else {"text": ""}
            self._event({"choices": [{**last, "finish_reason": "length"}]})
            prompt = body.get("prompt") or body["messages"][0]["content"]
            length = len(prompt) if isinstance(prompt, list) else len(prompt.split())
            usage = {"prompt_tokens": length, "completion_tokens": body["max_tokens"] + 1}
            self._event({"choices": [], "usage": usage})
            self._send(b"data: [DONE]\n\n")
            return self._end()

        def _event(self, chunk: object) -> None:
            self._send(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n")

        def _send(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

        def _end(self) -> None:
            self.wfile.write(b"0\r\n\r\n")

        def _whole(self, status: int, document: object, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    state = OpenAIServer(f"http://127.0.0.1:{server.server_address[1]}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.release.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
