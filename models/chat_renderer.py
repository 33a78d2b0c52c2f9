"""Renders chats by a checkpoint's template in a process of its own, which is killed when it takes too long.

A template is a stranger's program, and no sandbox inside a process bounds its time: one multiplication or one
`**` of constants can last for ever, even while it is compiled.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from colibri.deadline import Deadline
from colibri.errors import Busy, CheckpointError, ColibriError, DeadlineExpired, InvalidInput
from colibri.models.chat import load_chat_source
from colibri.models.tokenizer import Tokenizer

#: For compiling the template, and again for each chat.
LIMIT_S = 2.0
#: From the start of the process until it has read the template.
_START_S = 20.0
#: What the process gets to report or to die after its own limit.
_GRACE_S = 2.0
_LENGTH = struct.Struct(">I")
_MAX_REPLY = 64 << 20


class ChatRenderer:
    """Thread-safe; renders one chat at a time. Raises CheckpointError for a template that is not valid."""

    def __init__(
        self, source: str, *, bos_text: str | None, eos_text: str | None, limit_s: float = LIMIT_S
    ) -> None:
        self._first = {"source": source, "bos_text": bos_text, "eos_text": eos_text, "limit_s": limit_s}
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        with self._lock:
            self._start()

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,
        deadline: Deadline = Deadline(),  # noqa: B008 - frozen
    ) -> str:
        """The prompt for `messages`, as ChatTemplate.render.

        Raises InvalidInput for messages that the template refuses or takes too long for, DeadlineExpired, and Busy
        when others' chats take all the time.
        """
        wait_s = deadline.bound(2 * self._limit_s + _GRACE_S)
        if not self._lock.acquire(timeout=wait_s):
            raise Busy(f"chat template: other chats took more than {wait_s:.1f} s", retry_after_s=1.0)
        try:
            process = self._process or self._start()
            until = time.monotonic() + deadline.bound(self._limit_s + _GRACE_S)
            asked = {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
            reply = self._exchange(process, asked, until)
            if reply is None:
                raise self._why(process, deadline)
        finally:
            self._lock.release()
        if "refused" in reply:
            field, expected, got = reply["refused"]
            raise InvalidInput(f"chat.{field}", expected, got)
        text: str = reply["text"]
        return text

    def close(self) -> None:
        """Ends the process. Nothing may be rendered afterwards."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._end(self._process)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ColibriError("chat template: its renderer is closed")
        command = [sys.executable, "-m", "colibri.models.chat_worker"]
        # A session of its own: Ctrl-C at a terminal is for the program, not for each of its processes.
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        self._process = process
        reply = self._exchange(process, self._first, time.monotonic() + _START_S + self._limit_s)
        if reply is None:
            code = self._end(process)
            if code == -signal.SIGALRM:
                expected = f"one that compiles within {self._limit_s:g} s"
                raise CheckpointError.of("chat template", "", expected, "no end")
            raise CheckpointError(f"chat template: its process ended with code {code}")
        if "error" in reply:
            self._end(process)
            raise CheckpointError(reply["error"])
        return process

    def _why(self, process: subprocess.Popen[bytes], deadline: Deadline) -> ColibriError:
        """Why a chat got no reply; its process is ended."""
        code = self._end(process)
        if code == -signal.SIGALRM:
            return InvalidInput(
                "chat.messages", f"what the chat template renders within {self._limit_s:g} s", "no end"
            )
        if deadline.expired():
            return DeadlineExpired("chat template: the request's time ended while it was rendered")
        return ColibriError(f"chat template: its process ended with code {code}")

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        """Its exit code; -SIGKILL when it had to be killed, whether or not it is gone yet."""
        self._process = None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            return process.wait(0.2)
        except subprocess.TimeoutExpired:
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
        return -signal.SIGKILL

    def _exchange(self, process: subprocess.Popen[bytes], message: object, until: float) -> Any:
        """The reply to a message; None when the process died or monotonic time `until` came first."""
        if process.stdin is None or process.stdout is None:
            return None
        data = json.dumps(message).encode()
        to_send = memoryview(_LENGTH.pack(len(data)) + data)
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            for pipe, event in (
                (process.stdin, selectors.EVENT_WRITE),
                (process.stdout, selectors.EVENT_READ),
            ):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, event)
            while (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.fileobj is process.stdin:
                        try:
                            to_send = to_send[os.write(key.fd, to_send) :]
                        except BrokenPipeError:
                            return None
                        if not to_send:
                            selector.unregister(process.stdin)
                        continue
                    part = os.read(key.fd, 1 << 16)
                    if not part:
                        return None
                    received += part
                if len(received) >= _LENGTH.size:
                    size = _LENGTH.unpack_from(received)[0]
                    if size > _MAX_REPLY:
                        return None
                    if len(received) == _LENGTH.size + size:
                        return json.loads(received[_LENGTH.size :])
        return None


def load_chat_renderer(folder: str | Path, tokenizer: Tokenizer) -> ChatRenderer | None:
    """Of the checkpoint's default template, or None if it has none. Raises CheckpointError."""
    source = load_chat_source(folder)
    if source is None:
        return None
    return ChatRenderer(source, bos_text=tokenizer.bos_text, eos_text=tokenizer.eos_text)
