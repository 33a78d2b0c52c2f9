"""Events of an answer to protobuf messages."""

from __future__ import annotations

from colibri.generation import Accepted, Event, Tokens
from colibri.v1 import generation_pb2 as pb


def to_reply(event: Event) -> pb.GenerateReply:
    if isinstance(event, Tokens):
        return pb.GenerateReply(
            tokens=pb.Tokens(choice=event.choice, ids=event.ids, text=event.text, receipts=event.receipts)
        )
    if isinstance(event, Accepted):
        return pb.GenerateReply(
            accepted=pb.Accepted(
                request_id=event.request_id, prompt_tokens=event.prompt_tokens, seed=event.seed
            )
        )
    return pb.GenerateReply(
        finished=pb.Finished(
            choice=event.choice,
            reason=pb.FinishReason.ValueType(event.reason.value),
            stop_id=event.stop_id or 0,
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
