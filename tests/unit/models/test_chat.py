"""Chat templates: text and ids as transformers makes them, and what a template may not do."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from colibri.errors import CheckpointError, InvalidInput
from colibri.models.chat_renderer import load_chat_renderer
from colibri.models.confined.template import ChatTemplate
from colibri.models.plain_tokenizer import write_plain_tokenizer
from colibri.models.tokenizer import Tokenizer

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden_tokenizer.json").read_text())
HELLO = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("case", GOLDEN["chat"], ids=range(len(GOLDEN["chat"])))
def test_text_and_ids_equal_those_of_transformers(demo_model: Path, case: dict[str, Any]) -> None:
    tokenizer = Tokenizer.load(demo_model)
    template = load_chat_renderer(demo_model, tokenizer)
    assert template is not None
    text = template.render(case["messages"], add_generation_prompt=bool(case["add_generation_prompt"]))
    assert text == case["text"]
    assert tokenizer.encode(text, add_special=False) == case["ids"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_plain_tokenizer(tmp_path, 300, 64)
    return tmp_path


def put(folder: Path, value: object) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": value}))


def test_where_a_template_comes_from(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    assert load_chat_renderer(folder, tokenizer) is None
    put(folder, "{{ bos_token }}one")
    one = load_chat_renderer(folder, tokenizer)
    assert one is not None
    assert one.render(HELLO) == "<s>one"
    put(
        folder, [{"name": "default", "template": "two{{ eos_token }}"}, {"name": "tool", "template": "three"}]
    )
    two, three = load_chat_renderer(folder, tokenizer), load_chat_renderer(folder, tokenizer, name="tool")
    assert two is not None
    assert three is not None
    assert (two.render(HELLO), three.render(HELLO)) == ("two</s>", "three")
    with pytest.raises(CheckpointError, match="expected one of default, tool, got 'rag'"):
        load_chat_renderer(folder, tokenizer, name="rag")
    (folder / "chat_template.jinja").write_text("four {{ messages[0].content }}")
    four = load_chat_renderer(folder, tokenizer)
    assert four is not None
    assert four.render(HELLO) == "four hello"


@pytest.mark.parametrize(
    "value", [7, {"default": "x"}, ["x"], [{"name": "a"}], [{"name": "a", "template": "x"}] * 2]
)
def test_a_malformed_entry_is_refused(folder: Path, value: object) -> None:
    put(folder, value)
    with pytest.raises(CheckpointError, match="chat_template: expected"):
        load_chat_renderer(folder, Tokenizer.load(folder))


def test_invalid_and_oversized_sources(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="expected valid Jinja, got the error"):
        ChatTemplate("{% for %}")
    with pytest.raises(CheckpointError, match="at most 1048576 bytes"):
        ChatTemplate("x" * (1 << 20) + "é")
    (folder / "chat_template.jinja").write_bytes(b"x" * ((1 << 20) + 1))
    with pytest.raises(CheckpointError, match="at most 1048576 bytes"):
        load_chat_renderer(folder, Tokenizer.load(folder))
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(CheckpointError, match="expected a template, got text that is no UTF-8"):
        load_chat_renderer(folder, Tokenizer.load(folder))


def test_functions_that_templates_rely_on() -> None:
    now = datetime(2024, 7, 26, 12, 30)
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: now)
    assert template.render(HELLO) == "26 Jul 2024"
    assert ChatTemplate("{{ messages[0] | tojson }}").render([{"role": "user", "content": "<é>"}]) == (
        '{"role": "user", "content": "<é>"}'
    )
    assert ChatTemplate("{% for m in messages %}a{% break %}{% endfor %}").render(HELLO * 2) == "a"
    assert ChatTemplate("x{% generation %}y{% endgeneration %}z").render(HELLO) == "xyz"
    assert ChatTemplate("  {% if true %}\na\n  {% endif %}\nb").render(HELLO) == "a\nb", "blocks are trimmed"
    refusing = ChatTemplate(
        "{% if messages[0].role != 'system' %}{{ raise_exception('System first!') }}{% endif %}ok"
    )
    assert refusing.render([{"role": "system", "content": ""}]) == "ok"
    with pytest.raises(InvalidInput, match=r"messages: .*System first!"):
        refusing.render(HELLO)


ATTACKS = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__ }}{{ messages.__class__.__base__ }}",
    "{{ raise_exception.__globals__ }}{{ raise_exception.__globals__['json'] }}",
    "{{ strftime_now.__globals__.__builtins__ }}x{{ strftime_now.__globals__['x'] }}",
    "{{ self.__init__.__globals__['os'] }}",
    "{{ self._TemplateReference__context.environment.globals }}{{ cycler.__init__.__globals__.os }}",
    "{{ messages.append({'role': 'user', 'content': 'x'}) }}",
    "{{ messages[0].update({'content': 'x'}) }}",
    "{% for i in range(10000000) %}{% endfor %}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}{{ lipsum.__globals__['os'].popen('id').read() }}",
]


@pytest.mark.parametrize("source", ATTACKS)
def test_the_sandbox_holds(source: str) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with pytest.raises(InvalidInput, match="its error"):
        ChatTemplate(source).render(messages)
    assert messages == HELLO


def test_output_is_bounded() -> None:
    with pytest.raises(InvalidInput, match="messages: expected a prompt of at most"):
        ChatTemplate("{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}").render(HELLO)


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "messages"),
        (HELLO * 20_000, "messages"),
        ([*HELLO, {"role": "user"}], r"messages\[1\]"),
        ([{"role": "user", "content": "x", "name": "y"}], r"messages\[0\]"),
        ([{"role": "user", "content": None}], r"messages\[0\].content"),
        ([{"role": 3, "content": "x"}], r"messages\[0\].role"),
    ],
    ids=["none", "too many", "no content", "surplus", "null", "number"],
)
def test_malformed_messages_are_named(messages: list[dict[str, str]], field: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{field}: expected"):
        ChatTemplate("x").render(messages)
