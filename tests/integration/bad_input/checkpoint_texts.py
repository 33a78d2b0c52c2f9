"""Checkpoints whose tokenizer, chat template or weights' values are wrong."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.bad_input import folders as f
from tests.integration.bad_input.case import ANY, MODEL, Refusal
from tests.integration.bad_input.checkpoint_case import CheckpointCase, Stage, wrong
from tests.integration.bad_input.folders import EXPERT, NORM

TOKENIZER = f"{MODEL}/tokenizer.json"
EMBEDDING = "model.embed_tokens.weight"
_NAN, _INF = 0x7FC1, 0xFF80


def _tokenizer(id: str, how: str, change: Callable[[f.Json], object], refusal: Refusal) -> CheckpointCase:
    return CheckpointCase(f"tokenizer-{id}", how, f.edit_tokenizer(change), refusal, Stage.TOKENIZER)


def _no_tokenizer(reason: str) -> Refusal:
    return wrong(TOKENIZER, "", "a tokenizer", f"none: {reason}")


def _settings(id: str, how: str, refusal: Refusal, **fields: object) -> CheckpointCase:
    return CheckpointCase(
        f"tokenizer-{id}", how, f.edit("tokenizer_config.json", **fields), refusal, Stage.TOKENIZER
    )


TOKENIZERS = (
    CheckpointCase(
        "tokenizer-truncated", "a tokenizer.json that ends early", f.truncate_to("tokenizer.json", 1000),
        _no_tokenizer(ANY), Stage.TOKENIZER,
    ),
    CheckpointCase(
        "tokenizer-empty", "an empty object as tokenizer.json", f.write("tokenizer.json", "{}"),
        _no_tokenizer(ANY), Stage.TOKENIZER,
    ),
    CheckpointCase(
        "tokenizer-huge", "a tokenizer.json of 1 GiB", f.truncate_to("tokenizer.json", 1 << 30),
        wrong(TOKENIZER, "", "at most 134217728 bytes", "1073741824"), Stage.TOKENIZER,
    ),
    CheckpointCase(
        "tokenizer-pipe", "tokenizer.json is a pipe", f.pipe("tokenizer.json"),
        wrong(TOKENIZER, "", "a regular file", "something else"), Stage.TOKENIZER,
    ),
    _tokenizer("model", "a model that the library does not know",
               lambda raw: raw["model"].update(type="Oracle"), _no_tokenizer(ANY)),
    _tokenizer("panics", "a normalizer on which the library panics",
               lambda raw: raw.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
               _no_tokenizer(ANY)),
    _tokenizer("larger", "more tokens than the model has",
               lambda raw: raw["model"]["vocab"].update({f"new{i}": 300 + i for i in range(7)}),
               wrong("tokenizer.json", "vocabulary", "at most vocab_size = 300 tokens", "307")),
    _tokenizer("sparse", "an id beyond the model's vocabulary",
               lambda raw: raw["model"]["vocab"].update({next(reversed(raw["model"]["vocab"])): 1 << 20}),
               wrong("tokenizer.json", "vocabulary", "ids from 0 to 299", str(1 << 20))),
    _tokenizer("dropout", "merges that are dropped at random", lambda raw: raw["model"].update(dropout=0.5),
               wrong("tokenizer.json", "model.dropout", "none, since equal texts must give equal ids", "0.5")),
    _settings("bos-number", "tokenizer_config.json: bos_token = 1",
              wrong("tokenizer_config.json", "bos_token", "a string or an object with `content`", "1"), bos_token=1),
    _settings("add-bos-text", "tokenizer_config.json: add_bos_token = 'yes'",
              wrong("tokenizer_config.json", "add_bos_token", "true or false", "'yes'"), add_bos_token="yes"),
    CheckpointCase(
        "tokenizer-settings", "a tokenizer_config.json that is no JSON", f.write("tokenizer_config.json", "bos: <s>"),
        wrong(
            f"{MODEL}/tokenizer_config.json", "", "a JSON object",
            "none: Expecting value: line 1 column 1 (char 0)",
        ),
        Stage.TOKENIZER,
    ),
)  # fmt: skip


def _value(id: str, tensor: str, element: int, place: str, pattern: int) -> CheckpointCase:
    where = f"{MODEL}/model.safetensors: {tensor}"
    kind = "NaN" if pattern == _NAN else "Inf"
    return CheckpointCase(
        f"weights-{id}", f"{kind} in {tensor}", f.poke(tensor, element, pattern),
        wrong(where, f"element {place}", "a finite value", f"{kind} (0x{pattern:04x})"), Stage.WEIGHTS,
    )  # fmt: skip


_LAYER = "model.layers.1"
VALUES = (
    _value("nan-embedding", EMBEDDING, 9599, "[299, 31]", _NAN),
    _value("inf-norm", NORM, 3, "[3]", _INF),
    _value("nan-attention", f"{_LAYER}.self_attn.k_proj.weight", 0, "[0, 0]", _NAN),
    _value("inf-gate", f"{_LAYER}.block_sparse_moe.gate.weight", 33, "[1, 1]", _INF),
    _value("nan-expert", EXPERT, 47, "[0, 47]", _NAN),
)


def _template(id: str, how: str, content: bytes, refusal: Refusal) -> CheckpointCase:
    return CheckpointCase(
        f"template-{id}", how, f.write("chat_template.jinja", content), refusal, Stage.TEMPLATE
    )


_TEMPLATE = f"{MODEL}/chat_template.jinja"
TEMPLATES = (
    _template("syntax", "a chat template that is no Jinja", b"{% for %}",
              wrong("chat template", "", "valid Jinja", f"the error: {ANY}")),
    _template("unknown-filter", "a chat template with a filter that there is not", b"{{ messages | shell }}",
              wrong("chat template", "", "valid Jinja", "the error: No filter named 'shell'.")),
    _template("latin1", "a chat template that is no UTF-8", b"gr\xfc\xdfe",
              wrong(_TEMPLATE, "", "a template", "text that is no UTF-8 (byte 2: invalid start byte)")),
    _template("huge", "a chat template of 2 MiB", b" " * (2 << 20),
              wrong(_TEMPLATE, "", "at most 1048576 bytes", "2097152")),
    CheckpointCase(
        "template-unnamed", "tokenizer_config.json: chat_template = 7",
        f.in_order(f.remove("chat_template.jinja"), f.edit("tokenizer_config.json", chat_template=7)),
        wrong("tokenizer_config.json", "chat_template", "a string or a list of named templates", "7"),
        Stage.TEMPLATE,
    ),
)  # fmt: skip
