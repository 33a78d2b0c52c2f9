"""How large a call's work is, told by counting alone: bytes of text and ids that Python must look at."""

from __future__ import annotations

from colibri.coordinator.validation.fields import MAX_TEXT_BYTES
from colibri.v1 import generation_pb2 as pb

#: Work up to this is done at once, beside others; more takes its turn (colibri.rpc.turns).
SHORT_BYTES = 16 << 10
#: What an id costs in bytes of text, about; one that is resumed is decoded by itself, 10 us.
_ID_BYTES = 4
_RESUMED_BYTES = 64
_MESSAGE_BYTES = 64


def of_generate(request: pb.GenerateRequest, context: int) -> int:
    """context: ids of prompt and answer; 0 for what is refused by its length alone."""
    kind, resumed = request.WhichOneof("prompt"), len(request.resume.generated_ids)
    if max(resumed, len(request.token_ids.ids)) > context:
        return 0
    size = _RESUMED_BYTES * resumed
    if kind == "text":
        size += _of_text(request.text)
    elif kind == "token_ids":
        size += _ID_BYTES * len(request.token_ids.ids)
    elif kind == "chat":
        size += of_chat(request.chat)
    return size


def of_tokenize(request: pb.TokenizeRequest) -> int:
    return of_chat(request.chat) if request.WhichOneof("input") == "chat" else _of_text(request.text)


def _of_text(text: str) -> int:
    return len(text) if len(text) <= MAX_TEXT_BYTES else 0


def of_detokenize(request: pb.DetokenizeRequest) -> int:
    return _ID_BYTES * len(request.ids)


def of_chat(chat: pb.Chat) -> int:
    size = _MESSAGE_BYTES * len(chat.messages)
    for message in chat.messages:
        if size > SHORT_BYTES:
            break
        size += len(message.role) + len(message.content)
    return size
