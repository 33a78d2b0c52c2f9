"""The process that renders chats: `python -m colibri.models.confined.chat_child`, started by chat_renderer."""

from __future__ import annotations

from typing import Any

from colibri.models.confined.child import Answer, Message, serve
from colibri.models.confined.template import ChatTemplate


def _begin(head: dict[str, Any], _: bytes) -> tuple[Answer, Message]:
    template = ChatTemplate(head["source"], bos_text=head["bos_text"], eos_text=head["eos_text"])

    def answer(asked: dict[str, Any], _: bytes) -> Message:
        text = template.render(asked["messages"], asked["add_generation_prompt"])
        return {}, text.encode("utf-8", "surrogatepass")

    return answer, ({}, b"")


if __name__ == "__main__":
    serve(_begin)
