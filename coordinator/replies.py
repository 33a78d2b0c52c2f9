"""Turn events of an answer into protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence

from colibri.generation import Accepted, Event, Prompt, TokenLogprobs, Tokens
from colibri.v1 import generation_pb2 as pb


def to_reply(event: Event) -> pb.GenerateReply:
    if isinstance(event, Tokens):
        return pb.GenerateReply(
            tokens=pb.Tokens(
                choice=event.choice,
                ids=event.ids,
                text=event.text,
                receipts=event.receipts,
                logprobs=_logprobs(event.logprobs),
            )
        )
    if isinstance(event, Accepted):
        return pb.GenerateReply(
            accepted=pb.Accepted(
                request_id=event.request_id, prompt_tokens=event.prompt_tokens, seed=event.seed
            )
        )
    if isinstance(event, Prompt):
        return pb.GenerateReply(
            prompt=pb.Prompt(ids=event.ids, text=event.text, logprobs=_logprobs(event.logprobs))
        )
    return pb.GenerateReply(
        finished=pb.Finished(
            choice=event.choice,
            reason=pb.FinishReason.ValueType(event.reason.value),
            stop_id=event.stop_id or 0,
            stop_string=event.stop_string or "",
            usage=pb.Usage(
                prompt_tokens=event.usage.prompt_tokens,
                completion_tokens=event.usage.completion_tokens,
                total_tokens=event.usage.total_tokens,
            ),
            receipt=event.receipt,
            seed=event.seed,
            engine_numerics_id=event.engine_numerics_id,
        )
    )


def _logprobs(values: Sequence[TokenLogprobs | None]) -> list[pb.TokenLogprobs]:
    """What has none is an empty message."""
    return [
        pb.TokenLogprobs()
        if value is None
        else pb.TokenLogprobs(
            logprob=value.logprob,
            top_ids=[token for token, _ in value.top],
            top_logprobs=[logprob for _, logprob in value.top],
        )
        for value in values
    ]
