"""Tokens that stand in tokenizer_config.json alone are tokens; ids compared with transformers' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from colibri.errors import CheckpointError
from colibri.models.plain_tokenizer import write_plain_tokenizer
from colibri.models.tokenizer import Tokenizer

VOCAB = 300


def token(content: str, **flags: bool) -> dict[str, Any]:
    return {"content": content, **flags}


def load(folder: Path, decoder: object) -> Tokenizer:
    folder.mkdir(exist_ok=True)
    write_plain_tokenizer(folder, VOCAB, 64)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "added_tokens_decoder": decoder}))
    return Tokenizer.load(folder)


def test_a_token_that_only_the_config_has(tmp_path: Path) -> None:
    before = load(tmp_path / "a", {}).encode("w1 <tool> w2", add_special=False)
    found = load(tmp_path / "b", {"300": token("<tool>", special=True)})
    ids = found.encode("w1 <tool> w2", add_special=False)
    assert 300 in ids
    assert 300 not in before
    assert found.vocab == 301
    assert 300 in found.special
    assert "<tool>" not in found.decode(ids)
    assert "<tool>" in found.decode(ids, skip_special=False)


def test_tokens_are_added_in_the_order_of_their_ids(tmp_path: Path) -> None:
    found = load(tmp_path, {"301": token("<b>"), "300": token("<a>")})
    assert found.encode("<b><a>", add_special=False)[-2:] == [301, 300]
    assert not {300, 301} & found.special


def test_flags_of_the_config_count(tmp_path: Path) -> None:
    found = load(tmp_path, {"300": token("<a>", rstrip=True)})
    plain = load(tmp_path / "plain", {"300": token("<a>")})
    assert found.encode("<a> w1", add_special=False) == found.encode("<a>w1", add_special=False)
    assert plain.encode("<a> w1", add_special=False) != plain.encode("<a>w1", add_special=False)


@pytest.mark.parametrize(
    ("decoder", "told"),
    [
        ([], "added_tokens_decoder: expected an object"),
        ({"-1": token("<a>")}, "added_tokens_decoder: expected ids from 0"),
        ({"07": token("<a>")}, "added_tokens_decoder: expected ids from 0"),
        ({str(1 << 40): token("<a>")}, "added_tokens_decoder: expected ids from 0"),
        ({"9" * 5000: token("<a>")}, "added_tokens_decoder: expected ids from 0"),
        ({"300": "<a>"}, "added_tokens_decoder.300: expected an object with `content`"),
        ({"300": token("")}, "added_tokens_decoder.300: expected an object with `content`"),
        (
            {"300": {"content": "<a>", "special": 1}},
            "added_tokens_decoder.300.special: expected true or false, got 1",
        ),
        (
            {"305": token("<a>")},
            "added_tokens_decoder.305: expected the id that tokenizer.json leaves for '<a>', 300, got 305",
        ),
        ({"7": token("<a>")}, "added_tokens_decoder.7: expected the id"),
    ],
)
def test_what_is_no_token(tmp_path: Path, decoder: object, told: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path, decoder)
    assert told in caught.value.message
