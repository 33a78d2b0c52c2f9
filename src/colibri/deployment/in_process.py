"""Requests to an engine of this process, judged as a server judges them."""

from __future__ import annotations

import secrets
import threading
import uuid

from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.validation.requests import Draws, to_request
from colibri.deadline import Deadline
from colibri.deployment.running import Deployment
from colibri.models.chat_renderer import ChatRenderer, load_chat_renderer
from colibri.models.model import confirm_texts
from colibri.v1 import generation_pb2 as pb


class InProcess:
    """Takes requests from any thread. The deployment is its owner's: `close` leaves it running."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._chat: ChatRenderer | None = None
        self._looked = False
        self._lock = threading.Lock()

    def submit(self, request: pb.GenerateRequest, timeout_s: float) -> RequestHandle:
        """Queues a request and returns its handle.

        timeout_s: seconds for the whole answer.

        Raises InvalidInput, Busy and what else `Engine.submit` raises.
        """
        deployment = self._deployment
        asked = to_request(
            request,
            deployment.limits,
            deployment.tokenizer,
            Deadline.after(timeout_s),
            Draws(seed=lambda: secrets.randbits(64), request_id=lambda: uuid.uuid4().hex),
            self._renderer() if request.WhichOneof("prompt") == "chat" else None,
        )
        return deployment.engine.submit(asked)

    def abort(self, request_id: str) -> bool:
        """Ends a request at its next step, with Finished and ABORT. False: no such request runs."""
        return self._deployment.engine.abort(request_id)

    def close(self) -> None:
        with self._lock:
            self._looked = True
            chat, self._chat = self._chat, None
        if chat is not None:
            chat.close()

    def _renderer(self) -> ChatRenderer | None:
        """Started with the first chat: it is a process of its own."""
        deployment = self._deployment
        with self._lock:
            if not self._looked and deployment.tokenizer is not None:
                self._chat = load_chat_renderer(deployment.model.folder, deployment.tokenizer)
                confirm_texts(deployment.model)
            self._looked = True
            return self._chat
