"""Render chats with a checkpoint's template, in a confined process: a template is somebody else's program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from colibri.deadline import Deadline
from colibri.errors import InvalidInput
from colibri.models.chat import DEFAULT, load_chat_source
from colibri.models.confined.process import Confined, Fault, Limits, NoAnswer
from colibri.models.tokenizer import Tokenizer

#: CPU time for compiling the template, and again for each chat.
LIMIT_S = 2.0
_MEMORY_BYTES = 512 << 20


class ChatRenderer:
    """Renders chats. Thread-safe. Raises CheckpointError for a template that is invalid, or takes too much time or
    memory.
    """

    def __init__(
        self, source: str, *, bos_text: str | None, eos_text: str | None, limit_s: float = LIMIT_S
    ) -> None:
        self._limit_s = limit_s
        self._confined = Confined(
            "chat template",
            "colibri.models.confined.chat_child",
            ({"source": source, "bos_text": bos_text, "eos_text": eos_text}, b""),
            Limits(limit_s, limit_s, _MEMORY_BYTES, _MEMORY_BYTES),
        )

    @property
    def pids(self) -> list[int]:
        """Returns the ids of the live processes."""
        return self._confined.pids

    def render(
        self,
        messages: Sequence[Mapping[str, str]],
        add_generation_prompt: bool = True,
        deadline: Deadline = Deadline(),  # noqa: B008 - frozen
    ) -> str:
        """Returns the prompt for `messages`, each with `role` and `content`; control tokens are spelled out.

        Raises InvalidInput for malformed messages, and for messages that the template refuses or takes too long
        for; DeadlineExpired; Busy if other callers' chats take all the time.
        """
        asked = {"messages": list(messages), "add_generation_prompt": add_generation_prompt}
        # A message costs something even without content.
        size = sum(64 + len(str(part)) for message in messages for part in message.values())
        try:
            head, text = self._confined.ask(asked, b"", deadline, size)
        except NoAnswer as error:
            if error.fault is Fault.TIME:
                expected, got = f"what the chat template renders within {self._limit_s:g} s", "no end"
            elif error.fault is Fault.MEMORY:
                expected, got = (
                    f"what the chat template renders in {_MEMORY_BYTES >> 20} MiB of memory",
                    "more",
                )
            else:
                raise
            raise InvalidInput("chat.messages", expected, got) from None
        if "refused" in head:
            field, expected, got = head["refused"]
            raise InvalidInput(f"chat.{field}", expected, got)
        return text.decode("utf-8", "surrogatepass")

    def close(self) -> None:
        """Ends the processes. Nothing may be rendered afterwards."""
        self._confined.close()


def load_chat_renderer(
    folder: str | Path, tokenizer: Tokenizer, *, name: str = DEFAULT
) -> ChatRenderer | None:
    """Returns a renderer for the checkpoint's template `name`, or None if it has no template at all. Raises
    CheckpointError.
    """
    source = load_chat_source(folder, name)
    if source is None:
        return None
    return ChatRenderer(source, bos_text=tokenizer.bos_text, eos_text=tokenizer.eos_text)
