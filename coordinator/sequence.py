"""One choice of a request inside the engine: its tokens, and how far they are computed. Only the engine's thread
changes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from colibri.coordinator.answer_text import AnswerText
from colibri.coordinator.handle import RequestHandle
from colibri.coordinator.logprobs import token_logprobs
from colibri.coordinator.penalties import LogitShaper
from colibri.coordinator.receipts import next_receipt
from colibri.errors import ColibriError
from colibri.generation import Finished, FinishReason, Prompt, TokenLogprobs, Usage
from colibri.kernels.api import F32, Backend


@dataclass(frozen=True, slots=True)
class End:
    """Why an answer ends with a token. stop: the stop string that did it."""

    reason: FinishReason
    stop: str | None = None


class Sequence:
    """One choice. ids[:known] exist; ids[:computed] have their K and V in the cache; the answer begins behind the
    prompt.

    choice_index: which choice of its request.
    pages: held from admission to the end.
    followers: the other choices, while this one computes the prompt for all; they have nothing to compute until
        then.
    text: the text, if the engine has to decode it, that is with stop strings.
    scoring: the prompt's log-probabilities are still missing.
    """

    __slots__ = (
        "_logprobs",
        "_prompt_scores",
        "_shaper",
        "_text",
        "choice_index",
        "computed",
        "followers",
        "handle",
        "ids",
        "known",
        "pages",
        "prefill",
        "receipt",
        "request",
        "sampling",
        "scoring",
    )

    def __init__(self, handle: RequestHandle, choice_index: int, vocab: int, text: AnswerText | None) -> None:
        request = handle.request
        self.request = request
        self.handle = handle
        self.choice_index = choice_index
        self.sampling = request.sampling_of(choice_index)
        self.prefill = len(request.prompt_ids) + len(request.resumed_ids)
        self.ids = np.empty(request.kv_tokens, dtype=np.uint32)
        self.ids[: self.prefill] = np.concatenate([request.prompt_ids, request.resumed_ids])
        self.known = self.prefill
        self.computed = 0 if choice_index == 0 else self.prefill
        self.receipt = request.receipt
        self.pages: NDArray[np.int32] | None = None
        self.followers: tuple[Sequence, ...] = ()
        self.scoring = choice_index == 0 and request.scores_prompt
        self._text = text
        self._logprobs = request.logprobs
        self._prompt_scores: list[TokenLogprobs | None] = [None]
        self._shaper = None
        if not request.penalties.off or len(request.resumed_ids) < request.min_tokens:
            self._shaper = LogitShaper(
                vocab,
                request.penalties,
                request.prompt_ids,
                request.resumed_ids,
                request.min_tokens,
                request.stop_ids,
            )

    @property
    def pending(self) -> int:
        """Rows that could be computed now."""
        return self.known - self.computed

    @property
    def decoding(self) -> bool:
        return self.computed >= self.prefill

    @property
    def generated(self) -> int:
        """Tokens of the answer so far, resumed ones included; also the index of the next one."""
        return self.known - len(self.request.prompt_ids)

    def choose(self, backend: Backend, logits: F32) -> End | None:
        """Chooses and delivers the next token. Returns why the answer ends with it, or None.

        Raises ColibriError if the logits hold NaN or +Inf, which no request can cause.
        """
        request, shaper, text = self.request, self._shaper, self._text
        index = self.known - len(request.prompt_ids)
        try:
            token = backend.sample(logits if shaper is None else shaper.shaped(logits), self.sampling, index)
            logprobs = None if self._logprobs is None else self._score(backend, logits, token)
        except ValueError as error:
            raise ColibriError(f"token {index} cannot be chosen: {error}") from error
        self.receipt = next_receipt(self.receipt, logits, token)
        self.ids[self.known] = token
        self.known += 1
        if shaper is not None:
            shaper.saw(token)
        if text is None:
            self.handle.put(token, self.receipt, self.choice_index, None, logprobs)
        else:
            piece = text.push(token, may_stop=index + 1 >= request.min_tokens)
            self.handle.put(token, self.receipt, self.choice_index, piece, logprobs)
        if token in request.stop_ids:
            return End(FinishReason.STOP)
        if text is not None and text.stopped is not None:
            return End(FinishReason.STOP, text.stopped)
        return End(FinishReason.LENGTH) if index + 1 == request.max_tokens else None

    def score_prompt(self, backend: Backend, logits: F32) -> None:
        """Scores the prompt's next rows, and delivers the prompt when it is complete. Raises ColibriError as `choose`
        does.

        logits: [rows, vocab]; the prompt's last row is left out.
        """
        prompt, scores = self.request.prompt_ids, self._prompt_scores
        try:
            sums = backend.log_sum_exp(logits).tolist()
        except ValueError as error:
            raise ColibriError(f"the prompt has no log-probabilities: {error}") from error
        targets = prompt[len(scores) : len(scores) + len(logits)].tolist()
        for row, log_sum_exp, token in zip(logits, sums, targets, strict=True):
            scores.append(token_logprobs(row, log_sum_exp, token, self._logprobs or 0))
        if len(scores) == len(prompt):
            self.scoring = False
            self.handle.put_prompt(Prompt(tuple(prompt.tolist()), self.request.prompt_text, tuple(scores)))

    def finished(self, end: End, numerics_id: str) -> Finished:
        """Returns the last event."""
        by_id = end.reason is FinishReason.STOP and end.stop is None
        return Finished(
            reason=end.reason,
            stop_id=int(self.ids[self.known - 1]) if by_id else None,
            usage=Usage(len(self.request.prompt_ids), self.generated),
            receipt=self.receipt,
            seed=self.sampling.seed,
            engine_numerics_id=numerics_id,
            choice=self.sampling.choice,
            stop_string=end.stop,
        )

    def _score(self, backend: Backend, logits: F32, token: int) -> TokenLogprobs:
        log_sum_exp = float(backend.log_sum_exp(logits[None])[0])
        return token_logprobs(logits, log_sum_exp, token, self._logprobs or 0)
