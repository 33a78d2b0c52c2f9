"""Chat templates: Jinja in a sandbox, with the functions that templates on the Hugging Face hub use.

A template is a program that comes with the checkpoint. It runs in Jinja's immutable sandbox and sees plain data
only; its source and output are bounded. It can still compute for long (also while it is compiled) or make one huge
string, so it runs only in a confined process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from colibri.errors import CheckpointError, InvalidInput

MAX_TEMPLATE_BYTES = 1 << 20
#: Characters; a prompt may have half as many bytes.
MAX_OUTPUT = 2 << 20
MAX_MESSAGES = 1 << 14


class ChatTemplate:
    """A compiled template. Raises CheckpointError if its source is too long or not valid Jinja."""

    def __init__(
        self,
        source: str,
        *,
        bos_text: str | None = None,
        eos_text: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if len(source.encode("utf-8", "replace")) > MAX_TEMPLATE_BYTES:
            raise CheckpointError.of("chat template", "", f"at most {MAX_TEMPLATE_BYTES} bytes", "more")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except MemoryError:
            raise
        except Exception as error:  # what Python says of code that Jinja made, too
            raise CheckpointError.of("chat template", "", "valid Jinja", f"the error: {error}") from error
        self._special = {"bos_token": bos_text or "", "eos_token": eos_text or ""}

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns the prompt for `messages`, each with `role` and `content`; control tokens are spelled out.

        Raises InvalidInput for malformed messages, and, in the template's own words, for messages that it refuses.
        """
        plain = _checked(messages)
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(
                messages=plain, add_generation_prompt=add_generation_prompt, **self._special
            ):
                size += len(part)
                if size > MAX_OUTPUT:
                    raise InvalidInput("messages", f"a prompt of at most {MAX_OUTPUT} characters", "more")
                parts.append(part)
        except InvalidInput:
            raise
        except Exception as error:  # a stranger's program may raise anything
            words = str(error) or type(error).__name__
            raise InvalidInput("messages", "what the chat template accepts", f"its error: {words}") from error
        return "".join(parts)


def _checked(messages: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidInput("messages", f"1 to {MAX_MESSAGES} messages", len(messages))
    plain = []
    for i, message in enumerate(messages):
        if set(message) != {"role", "content"}:
            raise InvalidInput(f"messages[{i}]", "role and content", sorted(map(str, message)))
        for field in ("role", "content"):
            if type(message[field]) is not str:
                raise InvalidInput(f"messages[{i}].{field}", "a string", type(message[field]).__name__)
        plain.append(dict(message))
    return plain


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Replaces Jinja's own filter, which escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class _GenerationBlock(Extension):
    """Takes `{% generation %}...{% endgeneration %}`, which marks an assistant's words for training, as plain text."""

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
