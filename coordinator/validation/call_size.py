"""How large a call's work is, told by counting alone: bytes of its message, of text and of ids."""

from __future__ import annotations

from colibri.coordinator.prompts import MAX_MESSAGES
from colibri.coordinator.validation.fields import MAX_TEXT_BYTES
from colibri.coordinator.validation.stopping import MAX_STOP_IDS, MAX_STOP_STRINGS
from colibri.grpc_options import CONTROL_MESSAGE_BYTES
from colibri.rpc.counts import Counts, Most
from colibri.rpc.reading import Size
from colibri.v1 import generation_pb2 as pb

#: Ids of one Detokenize, where the context holds no more.
MAX_IDS = 1 << 17
#: Work up to this is done at once, beside others; more takes its turn (colibri.rpc.turns).
SHORT_BYTES = 16 << 10
#: What an id costs in bytes of text, about; one that is resumed is decoded by itself, 10 us.
_ID_BYTES = 4
_RESUMED_BYTES = 64
_MESSAGE_BYTES = 64


def sizes(context: int) -> dict[str, Size]:
    """What each method takes that is given texts, ids or chats.

    context: ids of prompt and answer.
    """
    messages = Most(MAX_MESSAGES, "messages", f"1 to {MAX_MESSAGES} messages")
    held = f"(the context holds {context})"
    generate = {
        "token_ids.ids": Most(context, "tokens", f"at most {context - 1} tokens {held}"),
        "chat.messages": messages,
        "stopping.stop_ids": Most(MAX_STOP_IDS, "ids"),
        "stopping.stop": Most(MAX_STOP_STRINGS, "strings"),
        "resume.generated_ids": Most(context, "tokens", f"at most {context - 1} tokens {held}"),
    }
    return {
        name: Size(CONTROL_MESSAGE_BYTES, Counts(pb.DESCRIPTOR.message_types_by_name[f"{name}Request"], most))
        for name, most in (
            ("Generate", generate),
            ("Tokenize", {"chat.messages": messages}),
            ("Detokenize", {"ids": Most(most_ids(context), "ids")}),
        )
    }


def most_ids(context: int) -> int:
    """Ids of one Detokenize."""
    return max(MAX_IDS, context)


def of_generate(request: pb.GenerateRequest, context: int) -> int:
    """Returns the size of a Generate call; 0 if its length alone refuses it. context: most ids of prompt and answer."""
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
