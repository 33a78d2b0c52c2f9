"""Chat templates: Jinja in a sandbox, with the functions that templates on the Hugging Face hub rely on.

A template is a program that comes with the checkpoint: it runs in Jinja's immutable sandbox, sees plain data
only, and its source and output are bounded. What it can still do is compute for long (also while it is
compiled) or make one huge string: a server renders in a process that can be killed (chat_renderer).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from colibri.errors import CheckpointError, InvalidInput
from colibri.models.config import wrong
from colibri.models.json_file import read_bounded, read_object
from colibri.models.tokenizer import CONFIG_NAME, Tokenizer

TEMPLATE_NAME = "chat_template.jinja"
DEFAULT = "default"
_MAX_TEMPLATE_BYTES = 1 << 20
_MAX_CONFIG_BYTES = 16 << 20
_MAX_OUTPUT = 16 << 20
MAX_MESSAGES = 1 << 14


class ChatTemplate:
    """One compiled template. Raises CheckpointError if its source is too long or no valid Jinja."""

    def __init__(
        self,
        source: str,
        *,
        bos_text: str | None = None,
        eos_text: str | None = None,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        if len(source.encode("utf-8", "replace")) > _MAX_TEMPLATE_BYTES:
            raise CheckpointError.of("chat template", "", f"at most {_MAX_TEMPLATE_BYTES} bytes", "more")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise CheckpointError.of("chat template", "", "valid Jinja", f"the error: {error}") from error
        self._special = {"bos_token": bos_text or "", "eos_token": eos_text or ""}

    def render(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """The prompt for `messages`, each with `role` and `content`; control tokens are spelled out.

        Raises InvalidInput for malformed messages and for those that the template refuses, with its own
        words.
        """
        plain = _checked(messages)
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(
                messages=plain, add_generation_prompt=add_generation_prompt, **self._special
            ):
                size += len(part)
                if size > _MAX_OUTPUT:
                    raise InvalidInput("messages", f"a prompt of at most {_MAX_OUTPUT} characters", "more")
                parts.append(part)
        except InvalidInput:
            raise
        except Exception as error:  # a stranger's program may raise anything
            words = str(error) or type(error).__name__
            raise InvalidInput("messages", "what the chat template accepts", f"its error: {words}") from error
        return "".join(parts)


def load_chat_template(
    folder: str | Path,
    tokenizer: Tokenizer,
    *,
    name: str = DEFAULT,
    now: Callable[[], datetime] = datetime.now,
) -> ChatTemplate | None:
    """The checkpoint's template `name`, or None if it has no template at all.

    `chat_template.jinja` goes before `chat_template` in tokenizer_config.json, which is a string or a list of
    objects with `name` and `template`. Raises CheckpointError for a malformed entry or an unknown name.
    """
    source = load_chat_source(folder, name)
    if source is None:
        return None
    return ChatTemplate(source, bos_text=tokenizer.bos_text, eos_text=tokenizer.eos_text, now=now)


def load_chat_source(folder: str | Path, name: str = DEFAULT) -> str | None:
    """The source of the checkpoint's template `name`, as `load_chat_template`."""
    sources = _sources(Path(folder))
    if not sources:
        return None
    if name not in sources:
        raise CheckpointError(f"chat template: expected one of {', '.join(sorted(sources))}, got {name!r}")
    return sources[name]


def _sources(folder: Path) -> dict[str, str]:
    path = folder / TEMPLATE_NAME
    if path.exists():
        try:
            return {DEFAULT: read_bounded(path, _MAX_TEMPLATE_BYTES).decode("utf-8")}
        except UnicodeDecodeError as error:
            got = f"text that is no UTF-8 (byte {error.start}: {error.reason})"
            raise CheckpointError.of(path, "", "a template", got) from error
    if not (folder / CONFIG_NAME).exists():
        return {}
    value = read_object(folder / CONFIG_NAME, _MAX_CONFIG_BYTES).get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    if not isinstance(value, list):
        raise wrong("chat_template", "a string or a list of named templates", value, CONFIG_NAME)
    sources: dict[str, str] = {}
    for entry in value:
        name = entry.get("name") if isinstance(entry, dict) else None
        source = entry.get("template") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not isinstance(source, str) or name in sources:
            raise wrong("chat_template", "objects with a unique `name` and a `template`", entry, CONFIG_NAME)
        sources[name] = source
    return sources


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
    """Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks what an assistant wrote, for training; here it is plain
    text.
    """

    tags = {"generation"}  # noqa: RUF012 - declared so by jinja2

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
