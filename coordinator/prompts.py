"""Turn prompts into token ids: text, ids or a chat, each with exactly the special tokens that it should have."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.coordinator.validation.fields import (
    MAX_TEXT_BYTES,
    check_bytes,
    check_in_vocab,
    checked_ids,
)
from colibri.deadline import Deadline
from colibri.errors import InvalidInput
from colibri.kernels.api import U32
from colibri.models.chat_renderer import ChatRenderer
from colibri.models.tokenizer import Tokenizer
from colibri.v1 import generation_pb2 as pb

#: Of a chat.
MAX_MESSAGES = 1 << 14


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt's ids, and the text that encodes to them: as given, as the template made it, or (for echo) the ids
    spelled out.
    """

    ids: U32
    text: str


class PromptEncoder:
    """Encodes prompts. Threads may share it. tokenizer, chat: None if the checkpoint has none."""

    def __init__(self, vocab: int, tokenizer: Tokenizer | None, chat: ChatRenderer | None = None) -> None:
        self._vocab = vocab
        self.tokenizer = tokenizer
        self.chat = chat

    def prompt(self, message: pb.GenerateRequest, most: int, deadline: Deadline) -> EncodedPrompt:
        """Returns a prompt of 1 to `most` tokens. Raises InvalidInput, and DeadlineExpired if the template took too
        long.
        """
        kind = message.WhichOneof("prompt")
        if kind == "token_ids":
            field = "token_ids.ids"
            _check_length(field, len(message.token_ids.ids), most)
            prompt = self._from_ids(message.token_ids, spell=message.echo)
        elif kind == "text":
            field = "text"
            prompt = self.from_text(message.text, add_special=True, most=most, deadline=deadline)
        elif kind == "chat":
            field = "chat"
            prompt = self.from_chat(message.chat, deadline, most)
        else:
            raise InvalidInput("prompt", "text, token_ids or chat", "none of them")
        _check_length(field, len(prompt.ids), most)
        return prompt

    def from_text(
        self,
        text: str,
        *,
        add_special: bool,
        most: int | None = None,
        deadline: Deadline = Deadline(),  # noqa: B008
    ) -> EncodedPrompt:
        if self.tokenizer is None:
            raise InvalidInput("prompt", "token_ids, since this model has no tokenizer", "text")
        check_bytes("text", text)
        ids = self.tokenizer.ids(text, add_special, most=most, deadline=deadline)
        return EncodedPrompt(check_in_vocab("text", ids, self._vocab), text)

    def from_chat(self, chat: pb.Chat, deadline: Deadline, most: int | None = None) -> EncodedPrompt:
        """Encodes a chat. The template writes its own BOS; none is added."""
        tokenizer, text = self.chat_text(chat, deadline)
        ids = tokenizer.ids(text, add_special=False, most=most, field="chat", deadline=deadline)
        return EncodedPrompt(check_in_vocab("chat", ids, self._vocab), text)

    def chat_text(self, chat: pb.Chat, deadline: Deadline) -> tuple[Tokenizer, str]:
        """Returns the text that the template makes of a chat, and the tokenizer that encodes it."""
        if self.tokenizer is None or self.chat is None:
            lacks, instead = (
                ("chat template", "text or ") if self.tokenizer is not None else ("tokenizer", "")
            )
            raise InvalidInput("prompt", f"{instead}token_ids, since this model has no {lacks}", "chat")
        if not 1 <= len(chat.messages) <= MAX_MESSAGES:
            raise InvalidInput("chat.messages", f"1 to {MAX_MESSAGES} messages", len(chat.messages))
        check_bytes(
            "chat.messages", "".join(part for each in chat.messages for part in (each.role, each.content))
        )
        text = self.chat.render(
            [{"role": message.role, "content": message.content} for message in chat.messages],
            not chat.HasField("add_generation_prompt") or chat.add_generation_prompt,
            deadline,
        )
        check_bytes("chat", text)
        return self.tokenizer, text

    def _from_ids(self, message: pb.TokenIds, *, spell: bool) -> EncodedPrompt:
        ids = checked_ids("token_ids.ids", message.ids, self._vocab)
        text = ""
        if spell and self.tokenizer is not None:
            text = self.tokenizer.decode(
                ids, skip_special=False, most_bytes=MAX_TEXT_BYTES, field="token_ids.ids"
            )
        return EncodedPrompt(ids, text)


def _check_length(field: str, count: int, most: int) -> None:
    if count > most:
        raise InvalidInput(field, f"at most {most} tokens (the context holds {most + 1})", f"{count} tokens")
    if count == 0:
        raise InvalidInput(field, "at least one token", "none")
