"""Read when an answer ends, and from where an earlier one resumes: the fields of Stopping and Resume."""

from __future__ import annotations

import numpy as np

from colibri.coordinator.validation.fields import checked_ids, in_range
from colibri.errors import InvalidInput
from colibri.kernels.api import U32
from colibri.models.generation_config import GenerationDefaults
from colibri.v1 import generation_pb2 as pb

MAX_STOP_IDS = 64
MAX_STOP_STRINGS = 16
MAX_STOP_BYTES = 256
DEFAULT_MAX_TOKENS = 1024


def max_tokens(stopping: pb.Stopping, defaults: GenerationDefaults, context: int, prompt: int) -> int:
    """Returns the most tokens of the whole answer. Raises InvalidInput.

    context: most tokens of prompt and answer.
    prompt: tokens of the prompt.
    """
    left = context - prompt
    if not stopping.HasField("max_tokens"):
        return min(left, defaults.max_new_tokens or DEFAULT_MAX_TOKENS)
    if not 1 <= stopping.max_tokens <= left:
        raise InvalidInput(
            "stopping.max_tokens",
            f"1 to {left} (context {context} less {prompt} tokens of prompt)",
            stopping.max_tokens,
        )
    return stopping.max_tokens


def min_tokens(stopping: pb.Stopping, most: int) -> int:
    """Returns the least tokens of the answer. most: max_tokens. Raises InvalidInput."""
    if stopping.min_tokens > most:
        raise InvalidInput("stopping.min_tokens", f"0 to {most} (max_tokens)", stopping.min_tokens)
    return stopping.min_tokens


def stop_ids(stopping: pb.Stopping, defaults: GenerationDefaults, vocab: int) -> frozenset[int]:
    """Returns the client's ids and, unless they are ignored, the checkpoint's. Raises InvalidInput."""
    if len(stopping.stop_ids) > MAX_STOP_IDS:
        raise InvalidInput(
            "stopping.stop_ids", f"at most {MAX_STOP_IDS} ids", f"{len(stopping.stop_ids)} ids"
        )
    own = checked_ids("stopping.stop_ids", stopping.stop_ids, vocab).tolist()
    return frozenset(own if stopping.ignore_eos else [*own, *defaults.eos])


def stop_strings(stopping: pb.Stopping, *, has_tokenizer: bool) -> tuple[str, ...]:
    """Raises InvalidInput."""
    if len(stopping.stop) > MAX_STOP_STRINGS:
        raise InvalidInput(
            "stopping.stop", f"at most {MAX_STOP_STRINGS} strings", f"{len(stopping.stop)} strings"
        )
    if stopping.stop and not has_tokenizer:
        shown = [stop[:MAX_STOP_BYTES] for stop in stopping.stop]
        raise InvalidInput("stopping.stop", "none, since this model has no tokenizer", shown)
    for at, stop in enumerate(stopping.stop):
        size = len(stop.encode())
        if not 1 <= size <= MAX_STOP_BYTES:
            raise InvalidInput(f"stopping.stop[{at}]", f"1 to {MAX_STOP_BYTES} bytes", f"{size} bytes")
    return tuple(stopping.stop)


def resumed_ids(resume: pb.Resume, vocab: int, longest: int, shortest: int, stops: frozenset[int]) -> U32:
    """Returns the ids of the earlier answer. Raises InvalidInput.

    longest, shortest: max_tokens and min_tokens.
    stops: ids that end the answer; only the last resumed id may be one.
    """
    field = "resume.generated_ids"
    if not resume.generated_ids:
        if resume.receipt:
            raise InvalidInput("resume.receipt", "0 without generated_ids", resume.receipt)
        return np.empty(0, dtype=np.uint32)
    if len(resume.generated_ids) > longest:
        raise InvalidInput(
            field,
            f"at most max_tokens ({longest}, which counts the whole answer)",
            len(resume.generated_ids),
        )
    ids = checked_ids(field, resume.generated_ids, vocab)
    last = len(ids) - 1
    for at, token in enumerate(ids.tolist()):
        if token in stops and (at < last or at < shortest):
            raise InvalidInput(f"{field}[{at}]", "no id that ends the answer", f"stop id {token}")
    return ids


def choice(resume: pb.Resume, n: int, most: int) -> int:
    """Returns the number of the first choice. most: choices of any request. Raises InvalidInput."""
    if n > 1 and (resume.generated_ids or resume.choice):
        raise InvalidInput("n", "1 where an answer is resumed", n)
    return int(in_range("resume.choice", resume.choice, 0, most - 1))
