"""Chat templates and tokenizers that attack whoever loads them: each is refused with words or answers, in bounded time
and memory, and the next one is served."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models

from colibri.errors import CheckpointError, ColibriError, InvalidInput
from colibri.models.chat_renderer import ChatRenderer
from colibri.models.confined.process import Limits
from colibri.models.plain_tokenizer import write_plain_tokenizer
from colibri.models.tokenizer import Tokenizer
from tests.support.tries import Tries

#: Bound of one attack on a busy machine: it does not hang.
BOUND_S = 60.0


def some(cases: Sequence[Any], every: int) -> list[Any]:
    """All of them in `make attacks`; each one so far from the last in `make test`."""
    return [
        pytest.param(case, id=str(at), marks=() if at % every == 0 else pytest.mark.attacks)
        for at, case in enumerate(cases)
    ]


HELLO = [{"role": "user", "content": "hello"}]
ITS_ERROR = "chat.messages: expected what the chat template accepts, got its error: "
NO_END = "chat.messages: expected what the chat template renders within 0.5 s, got no end"
INVALID = "chat template: expected valid Jinja, got the error: "
NO_COMPILE = "chat template: expected one that compiles within 0.5 s, got no end"
MEMORY_ERROR = "chat.messages: expected what the chat template renders in 512 MiB of memory, got more"
TOO_LONG = "chat.messages: expected a prompt of at most 2097152 characters, got more"

#: What reaches for Python: each is refused, none by accident of a name.
ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__']['__mro__'][1]['__subclasses__']() }}",
    "{{ (''|attr('__class__')).__mro__ }}",
    "{{ ''|attr('__cla' ~ 'ss__')|attr('__mro__') }}{{ 1|attr('__class__').mro() }}",
    "{{ [].__class__.__base__.__subclasses__()[100].__init__.__globals__ }}",
    "{{ {}.__class__.__bases__[0].__subclasses__() }}",
    "{{ messages.__class__.__base__.__subclasses__() }}",
    "{{ messages[0].__init__.__globals__ }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ lipsum['__globals__']['os']['system']('id') }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__.os }}{{ joiner.__init__.__globals__.os.system('id') }}",
    "{{ namespace.__init__.__globals__.os.system('id') }}",
    "{{ raise_exception.__globals__['json'] }}",
    "{{ raise_exception.__code__.co_consts }}{{ raise_exception.__code__.replace(co_code='') }}",
    "{{ strftime_now.__globals__['__builtins__']['eval']('1') }}",
    "{{ self.__init__.__globals__['os'] }}",
    "{{ self._TemplateReference__context.environment.globals.update(x=1) }}",
    "{{ self._TemplateReference__context.eval_ctx.environment.from_string('x').render() }}",
    "{{ range.__class__.__call__.__self__.mro() }}",
    "{{ dict.__base__.__subclasses__() }}",
    "{{ dict.mro() }}{{ dict.__subclasses__() }}",
    "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "{{ '{0.__class__.__init__.__globals__}'.format(cycler) }}",
    "{{ '{x.__class__}'.format_map({'x': 1}) }}",
    "{{ '%s'.__mod__.__self__.__class__ }}{{ ''.__mod__.__class__.mro() }}",
    "{% set f = ''.join %}{{ f.__self__.__class__.__mro__ }}",
    "{% for x in messages %}{{ x.keys.__self__.__class__.__mro__ }}{% endfor %}",
    "{{ (lambda: 1)() }}",
    "{{ __import__('os').system('id') }}",
    "{{ eval('1') }}{{ exec('1') }}",
    "{{ open('/etc/passwd').read() }}",
    "{{ request.application.__globals__ }}",
    "{{ config.items() }}",
    "{% import 'os' as os %}{{ os.system('id') }}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{% from 'os' import system %}{{ system('id') }}",
    "{{ messages.append({'role': 'x'}) }}",
    "{{ messages.clear() }}",
    "{{ messages[0].update({'content': 'x'}) }}",
    "{{ messages[0].__setitem__('content', 'x') }}",
    "{{ messages.sort() }}{{ messages.pop() }}",
    "{% set messages.x = 1 %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__class__.mro() }}",
    "{% macro m() %}{{ caller.__globals__.x }}{% endmacro %}{% call m() %}{% endcall %}{{ m._func.__globals__.x() }}",
    "{{ messages|map(attribute='__class__.__mro__')|list|first }}{{ raise_exception('no') }}",
    "{{ messages|map('attr', '__class__')|map('upper')|first }}{{ raise_exception('no') }}",
    "{{ messages|groupby('__class__.__mro__') }}{{ messages|sum(attribute='__class__') }}",
    "{% autoescape true %}{{ ''.__html__.__globals__.x() }}{% endautoescape %}",
    "{{ debug() }}{% debug %}",
    "{{ loop.__init__ }}{% for x in [1] %}{{ loop.__init__.__globals__.os }}{% endfor %}",
]
TIME = [
    "{{ 9 ** (9 ** (messages|length + 8)) }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% set x = 7 ** (messages|length * 90000000) %}{{ x }}",
    "{% for i in range(99999) %}{% set x = ('x' * 100000 ~ i)|upper %}{% endfor %}",
    "{{ (range(99999)|list * 99)|sort|map('string')|join|length }}{% for i in range(99999) %}"
    "{% set y = range(99999)|sum %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for i in range(99999) %}{{ messages|tojson|length }}{{ lipsum(n=1000)|length }}{% endfor %}",
    "{% set ns = namespace(x=2) %}{% for i in range(64) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{{ ('a' * 100000 ~ 'b')|replace('a', 'b' * 10)|replace('b', 'c')|wordwrap(1)|length }}"
    "{% for i in range(99999) %}{{ ('x ' * 9999)|wordwrap(3)|length }}{% endfor %}",
]
COMPILE_TIME = ["{{ 9 ** (9 ** 9) }}", "{{ 7 ** 900000000 }}{{ 1 }}"]
MEMORY = [
    "{{ 'A' * 3000000000 }}",
    "{{ ('x' * 100000) * messages|length * 100000 }}",
    "{% set ns = namespace(x='xx') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{{ 'x'|center(9000000000) }}",
    "{{ '%9000000000d'|format(1) }}",
    "{{ '{:9000000000}'.format(1) }}",
    "{{ messages|tojson(indent=2000000000) }}",
    "{{ ('x\n' * 100000)|indent(100000) }}",
    "{{ 'x'.ljust(9000000000) }}{{ 'x'.zfill(9000000000) }}",
    "{{ ''.join(['x' * 100000] * 100000) }}",
]
OUTPUT = [
    "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(9999) %}xxxxxxxxxx{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}"
    + "{{ f(n - 1) }}" * 9
    + "{% else %}"
    + "x" * 500
    + "{% endif %}{% endmacro %}{{ f(4) }}",
]
SHAPES = [
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "{% if 1 %}" * 3000 + "{% endif %}" * 3000,
    "{% for a in [1] %}" * 30 + "x" + "{% endfor %}" * 30,
    "{{ " + "not " * 9000 + "1 }}",
    "{{ " + "[" * 3000 + "]" * 3000 + " }}",
    "{{ a" + ".b" * 5000 + " }}",
    "{{ 1" + "|string" * 5000 + " }}",
    "{{ " + "9" * 5000 + " }}",
    "{% for %}",
    "{{",
    "{% generation %}",
    "{% break %}",
    "x" * (1 << 20) + "x",
]


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < BOUND_S


def rendered(source: str) -> str:
    """What comes of a template, an error's words included."""
    try:
        with contextlib.closing(ChatRenderer(source, bos_text="", eos_text="", limit_s=0.5)) as renderer:
            return renderer.render(HELLO)
    except (InvalidInput, CheckpointError) as error:
        return error.message


@pytest.mark.parametrize("source", some(ESCAPES, 6))
def test_templates_that_reach_for_python(source: str, tries: Tries) -> None:
    tries("templates that reach for Python", 1)
    got = rendered(source)
    # An attribute that is kept from a format string reads as nothing.
    assert got == "" or got.startswith((ITS_ERROR, INVALID)), got


@pytest.mark.parametrize("source", some(TIME, 4))
def test_templates_without_end(source: str, tries: Tries) -> None:
    tries("templates without end", 1)
    got = rendered(source)
    assert got.startswith((NO_END, NO_COMPILE, ITS_ERROR, TOO_LONG, MEMORY_ERROR)), got


@pytest.mark.parametrize("source", some(COMPILE_TIME, 2))
def test_templates_without_end_while_they_are_compiled(source: str, tries: Tries) -> None:
    tries("templates without end", 1)
    assert rendered(source) == NO_COMPILE


@pytest.mark.parametrize("source", some(MEMORY, 5))
def test_templates_that_want_all_memory(source: str, tries: Tries) -> None:
    tries("templates that want all memory", 1)
    compiled = "chat template: expected one that takes at most 512 MiB of memory, got more"
    got = rendered(source)
    assert got.startswith((MEMORY_ERROR, compiled, ITS_ERROR, NO_END, NO_COMPILE, TOO_LONG)), got


@pytest.mark.parametrize("source", some(OUTPUT, 3))
def test_templates_with_endless_prompts(source: str, tries: Tries) -> None:
    tries("templates with endless prompts", 1)
    assert rendered(source) in (TOO_LONG, NO_END)


@pytest.mark.parametrize("source", some(SHAPES, 5))
def test_templates_of_absurd_shapes(source: str, tries: Tries) -> None:
    tries("templates of absurd shapes", 1)
    assert rendered(source).startswith(("chat template: expected ", ITS_ERROR)), rendered(source)[:300]


LIMITS = Limits(load_s=5.0, answer_s=0.5, load_bytes=1 << 30, answer_bytes=256 << 20)
TEXT = "a" * 5000 + "! " + "x y " * 2000
PATTERNS = [
    "(a+)+$",
    "(a|a)*$",
    "(a|aa)+$",
    "(a*)*b",
    "(a+)*c|d",
    "(.*)*x$",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(?=(a+))*b",
    "(a?){5000}a{5000}",
    "((a{1,100}){1,100}){1,100}!!",
    "(?:a+){2,}b",
    "(a+)+\\1b",
    "(x+x+)+y",
    "([a-zA-Z]+)*1",
    "(\\w+\\s?)*$1",
    "(\\s*\\w+\\s*)*:",
    "(.+)+[^.]$9",
    "(?<=a*)b",
    "(((((((((a*)*)*)*)*)*)*)*)*)*b",
    "((a{1000}){1000}){1000}",
    "a{100000}{100000}",
    "(" * 5000 + "a" + ")" * 5000,
    "|".join(["a" * 50] * 20_000),
    "[" + "a-z" * 50_000 + "]",
    "(?<n>a\\g<n>?)+b",
    "(",
    "\\",
    "(?i)(ſ|s|S)*x$",
]
Edit = Callable[[dict[str, Any], str], object]


def _split(raw: dict[str, Any], pattern: str) -> None:
    raw["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def _replace(raw: dict[str, Any], pattern: str) -> None:
    raw["normalizer"] = {"type": "Replace", "pattern": {"Regex": pattern}, "content": "bb"}


def _decoder(raw: dict[str, Any], pattern: str) -> None:
    raw["decoder"] = {"type": "Replace", "pattern": {"Regex": pattern}, "content": ""}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("plain")
    write_plain_tokenizer(folder, 300, 64)
    found: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    return found


def attacked(raw: dict[str, Any], text: str) -> str:
    """What comes of a tokenizer; "answered" where it does its work. The short text comes last: it is served."""
    data = json.dumps(raw).encode()
    try:
        with contextlib.closing(Tokenizer(data, {}, limits=LIMITS)) as tokenizer:
            for each in (text, text[:200]):
                with contextlib.suppress(ColibriError):
                    tokenizer.encode(each)
            tokenizer.encode(text)
            tokenizer.decode([5, 6, 7])
    except (InvalidInput, CheckpointError) as error:
        return error.message
    return "answered"


@pytest.mark.parametrize("edit", [_split, _replace], ids=["split", "replace"])
@pytest.mark.parametrize("pattern", some(PATTERNS, 7))
def test_regular_expressions(plain: dict[str, Any], pattern: str, edit: Edit, tries: Tries) -> None:
    tries("regular expressions of tokenizers", 1)
    raw = json.loads(json.dumps(plain))
    edit(raw, pattern)
    got = attacked(raw, TEXT)
    assert got.startswith(
        ("answered", "text: expected what the tokenizer takes ", "tokenizer.json: expected ")
    ), got


@pytest.mark.parametrize("pattern", some(PATTERNS[:5], 5))
def test_regular_expressions_of_decoders(plain: dict[str, Any], pattern: str, tries: Tries) -> None:
    """They would run in the engine: none is taken."""
    tries("regular expressions of tokenizers", 1)
    raw = json.loads(json.dumps(plain))
    _decoder(raw, pattern)
    assert (
        attacked(raw, "x")
        == "tokenizer.json: decoder.pattern: expected a text to replace, got a regular expression"
    )


def _many_tokens(raw: dict[str, Any]) -> None:
    raw["model"]["vocab"] |= {f"v{n}": 300 + n for n in range(50_000)}


def _many_added(raw: dict[str, Any]) -> None:
    one = raw["added_tokens"][0]
    raw["added_tokens"] += [{**one, "id": 300 + n, "content": f"<{n}>"} for n in range(10_000)]


def _long_token(raw: dict[str, Any]) -> None:
    raw["model"]["vocab"]["x" * 5000] = 300


def _growing_decoder(raw: dict[str, Any]) -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}
    raw["decoder"] = {"type": "Sequence", "decoders": [step] * 20}


def _growing_normalizer(raw: dict[str, Any]) -> None:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"}
    raw["normalizer"] = {"type": "Sequence", "normalizers": [step] * 20}


def _many_decoders(raw: dict[str, Any]) -> None:
    raw["decoder"] = {"type": "Sequence", "decoders": [{"type": "Fuse"}] * 1000}


def _deep(raw: dict[str, Any]) -> None:
    for _ in range(200):
        raw["decoder"] = {"type": "Sequence", "decoders": [raw["decoder"]]}


def _empty_pattern(raw: dict[str, Any]) -> None:
    raw["decoder"] = {"type": "Replace", "pattern": {"String": ""}, "content": "x"}


def _charsmap(raw: dict[str, Any]) -> None:
    raw["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": "AAAA" * 1000}


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (_many_tokens, "answered"),
        (_many_added, "answered|"),
        (
            _long_token,
            "tokenizer.json: vocabulary: expected tokens of at most 4096 bytes, got one of 5000 bytes",
        ),
        (
            _growing_decoder,
            "tokenizer.json: decoder: expected replacements that make a text at most 64 times as long, ",
        ),
        (_growing_normalizer, "text: expected what the tokenizer takes in 256 MiB of memory, got more"),
        (_many_decoders, "tokenizer.json: decoder: expected at most 64 steps, got 1000"),
        (_deep, "tokenizer.json: expected a tokenizer, got none: "),
        (_empty_pattern, "tokenizer.json: decoder.pattern: expected a text to replace, got an empty text"),
        (_charsmap, "tokenizer.json: expected "),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_tokenizers_of_absurd_shapes(
    plain: dict[str, Any], edit: Callable[[dict[str, Any]], None], expected: str, tries: Tries
) -> None:
    tries("tokenizers of absurd shapes", 1)
    raw = json.loads(json.dumps(plain))
    edit(raw)
    assert attacked(raw, "aaaa bbbb").startswith(tuple(expected.split("|")))


def test_a_tokenizer_that_panics_in_the_engines_decoder() -> None:
    """WordPiece's own check of ids: whatever it does with them, the caller gets a typed error or a text."""
    inner = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    with contextlib.closing(Tokenizer(inner.to_str().encode(), {})) as tokenizer:
        assert tokenizer.decode([1, 0, 4_000_000_000]) == "a [UNK]"


def test_a_checkpoint_on_disk(tmp_path: Path, tries: Tries) -> None:
    """The loaders take the same path."""
    write_plain_tokenizer(tmp_path, 300, 64)
    raw = json.loads((tmp_path / "tokenizer.json").read_text())
    _decoder(raw, "(a+)+$")
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    tries("regular expressions of tokenizers", 1)
    with pytest.raises(CheckpointError, match=r"decoder\.pattern: expected a text to replace"):
        Tokenizer.load(tmp_path)
