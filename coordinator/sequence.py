"""A request inside the engine: its tokens and how far they have been computed. Only the engine's thread
changes it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.receipts import next_receipt
from colibri.errors import ColibriError
from colibri.generation import Finished, FinishReason, Usage
from colibri.kernels.api import F32, Backend


class Sequence:
    """ids[:known] exist, ids[:computed] have their K and V in the cache; the answer begins behind the prompt.

    order: of submission. pages: held from admission to the end. cancelled: set by any thread, read between
    steps.
    """

    __slots__ = (
        "admitted_at",
        "cancelled",
        "computed",
        "handle",
        "ids",
        "known",
        "order",
        "pages",
        "prefill",
        "receipt",
        "request",
    )

    def __init__(self, handle: RequestHandle, order: int) -> None:
        request = handle.request
        self.request = request
        self.handle = handle
        self.order = order
        self.prefill = len(request.prompt_ids) + len(request.resumed_ids)
        self.ids = np.empty(request.kv_tokens, dtype=np.uint32)
        self.ids[: self.prefill] = np.concatenate([request.prompt_ids, request.resumed_ids])
        self.known = self.prefill
        self.computed = 0
        self.receipt = request.receipt
        self.pages: NDArray[np.int32] | None = None
        self.admitted_at = 0.0
        self.cancelled = False

    @property
    def pending(self) -> int:
        """Rows that could be computed now."""
        return self.known - self.computed

    @property
    def decoding(self) -> bool:
        return self.computed >= self.prefill

    @property
    def generated(self) -> int:
        """Tokens of the answer so far, resumed ones included: the absolute index of the next one."""
        return self.known - len(self.request.prompt_ids)

    def choose(self, backend: Backend, logits: F32) -> FinishReason | None:
        """Chooses and delivers the next token; returns why the answer ends with it, if it does.

        Raises ColibriError when the logits hold NaN or +Inf, which nothing that a request says can cause.
        """
        request = self.request
        try:
            token = backend.sample(logits, request.sampling, self.generated)
        except ValueError as error:
            raise ColibriError(f"token {self.generated} cannot be chosen: {error}") from error
        self.receipt = next_receipt(self.receipt, logits, token)
        self.ids[self.known] = token
        self.known += 1
        self.handle.put(token, self.receipt)
        if token in request.stop_ids:
            return FinishReason.STOP
        return FinishReason.LENGTH if self.generated == request.max_tokens else None

    def finished(self, reason: FinishReason, numerics_id: str) -> Finished:
        """The last event."""
        return Finished(
            reason=reason,
            stop_id=int(self.ids[self.known - 1]) if reason is FinishReason.STOP else None,
            usage=Usage(len(self.request.prompt_ids), self.generated),
            receipt=self.receipt,
            seed=self.request.sampling.seed,
            engine_numerics_id=numerics_id,
        )
