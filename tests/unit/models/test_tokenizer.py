"""Ids and text against transformers' own, the BOS rule, and the stream that shows no half character."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers

from colibri.errors import CheckpointError, InvalidInput
from colibri.models.checkpoint import Checkpoint
from colibri.models.detokenizer import IncrementalDetokenizer
from colibri.models.gguf_llama import GgufVocabulary
from colibri.models.gguf_tokenizer import build_tokenizer
from colibri.models.plain_tokenizer import write_plain_tokenizer
from colibri.models.random_mixtral import RandomMixtral, random_mixtral
from colibri.models.tokenizer import Tokenizer

GOLDEN = json.loads((Path(__file__).parent / "data" / "golden_tokenizer.json").read_text())


@pytest.fixture(scope="module")
def smollm(demo_model: Path) -> Iterator[Tokenizer]:
    tokenizer = Tokenizer.load(demo_model)
    yield tokenizer
    tokenizer.close()


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    write_plain_tokenizer(tmp_path, 300, 64)
    return tmp_path


def set_config(folder: Path, **fields: object) -> None:
    path = folder / "tokenizer_config.json"
    raw = {**json.loads(path.read_text()), **fields}
    path.write_text(json.dumps({name: value for name, value in raw.items() if value is not ...}))


def test_every_digit_is_a_token(smollm: Tokenizer) -> None:
    ids = [788, 216, 33, 36, 41, 34, 665, 592, 216, 35, 27, 36, 45, 39, 7761, 30]
    assert smollm.encode("In 1492 there were 3+4=7 ships.") == ids
    assert smollm.decode(ids) == "In 1492 there were 3+4=7 ships."


@pytest.mark.parametrize("case", GOLDEN["texts"], ids=[ascii(case["text"])[:40] for case in GOLDEN["texts"]])
def test_ids_equal_those_of_transformers(smollm: Tokenizer, case: dict[str, object]) -> None:
    text, ids = str(case["text"]), case["ids"]
    assert smollm.encode(text) == ids
    assert smollm.decode(smollm.encode(text)) == case["decoded"]


def test_special_ids_of_the_demo_model(smollm: Tokenizer) -> None:
    assert smollm.special == frozenset(range(17))
    assert (smollm.bos, smollm.add_bos, smollm.vocab) == (1, False, 49152)
    assert (smollm.bos_text, smollm.eos_text) == ("<|im_start|>", "<|im_end|>")
    assert smollm.decode([1, 9690, 2]) == "system"
    assert smollm.decode([1, 9690, 2], skip_special=False) == "<|im_start|>system<|im_end|>"


def test_an_unknown_pre_tokenizer_is_refused() -> None:
    for model, pre, field in (
        ("gpt2", "llama-bpe", "pre"),
        ("gpt2", "", "pre"),
        ("llama", "smollm", "model"),
    ):
        vocabulary = GgufVocabulary(
            model=model,
            pre=pre,
            tokens=("a",),
            token_types=(1,),
            merges=(),
            bos=0,
            eos=0,
            unknown=0,
            padding=0,
            add_bos=False,
            chat_template="",
        )
        with pytest.raises(CheckpointError, match=f"tokenizer.ggml.{field}: expected"):
            build_tokenizer(vocabulary)


def test_exactly_one_bos(plain: Path) -> None:
    """Whoever asks for it: tokenizer_config.json, the post-processor in tokenizer.json, both, or the text
    itself.
    """
    text_ids = Tokenizer.load(plain).encode("hi", add_special=False)
    for rule, expected in ((True, [1, *text_ids]), (False, text_ids), (..., [1, *text_ids])):
        set_config(plain, add_bos_token=rule)
        tokenizer = Tokenizer.load(plain)
        assert tokenizer.encode("hi") == expected
        assert tokenizer.encode("hi", add_special=False) == text_ids
        assert tokenizer.encode("<s>hi") == [1, *text_ids], "the text brings its own"
        assert tokenizer.encode("") == expected[: len(expected) - len(text_ids)]


def test_no_bos_where_nothing_asks_for_it(plain: Path) -> None:
    raw = json.loads((plain / "tokenizer.json").read_text())
    raw["post_processor"] = None
    (plain / "tokenizer.json").write_text(json.dumps(raw))
    set_config(plain, add_bos_token=...)
    assert not Tokenizer.load(plain).add_bos
    set_config(plain, add_bos_token=True)
    assert Tokenizer.load(plain).encode("x")[0] == 1
    (plain / "tokenizer_config.json").unlink()
    tokenizer = Tokenizer.load(plain)
    assert (tokenizer.bos, tokenizer.add_bos) == (None, False)


def test_control_tokens_in_a_text_stay_text_where_the_checkpoint_says_so(plain: Path) -> None:
    assert Tokenizer.load(plain).encode("a</s>b").count(2) == 1
    set_config(plain, split_special_tokens=True)
    tokenizer = Tokenizer.load(plain)
    ids = tokenizer.encode("a</s>b")
    assert ids.count(2) == 0
    assert tokenizer.decode(ids) == "a</s>b"
    set_config(plain, split_special_tokens="yes")
    with pytest.raises(CheckpointError, match="split_special_tokens: expected true or false"):
        Tokenizer.load(plain)


def test_special_tokens_may_be_objects(plain: Path) -> None:
    set_config(plain, bos_token={"content": "<s>", "special": True})
    assert Tokenizer.load(plain).bos == 1


def test_a_saved_truncation_does_not_cut_prompts(plain: Path) -> None:
    inner = tokenizers.Tokenizer.from_file(str(plain / "tokenizer.json"))
    inner.enable_truncation(4)
    inner.enable_padding(length=9)
    inner.save(str(plain / "tokenizer.json"))
    assert len(Tokenizer.load(plain).encode("a" * 20)) == 21
    assert len(Tokenizer.load(plain).encode("a")) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"add_bos_token": "yes"}, "add_bos_token: expected true or false"),
        ({"bos_token": 7}, "bos_token: expected a string"),
        ({"bos_token": "<nothing>"}, "bos_token: expected a token"),
        ({"bos_token": None}, "bos_token: expected a token"),
    ],
)
def test_a_wrong_field_is_named(plain: Path, fields: dict[str, object], message: str) -> None:
    set_config(plain, **fields)
    with pytest.raises(CheckpointError, match=f"tokenizer_config.json: {message}"):
        Tokenizer.load(plain)


def test_damaged_and_mismatched_files(plain: Path, tmp_path: Path) -> None:
    model = random_mixtral(
        tmp_path / "m", RandomMixtral(hidden=8, ffn=8, layers=1, heads=2, kv_heads=1, vocab=200)
    )
    with pytest.raises(
        CheckpointError, match="vocabulary: expected at most vocab_size = 200 tokens, got 300"
    ):
        Tokenizer.load(plain, Checkpoint.open(model).config)
    (plain / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer.json: expected a tokenizer, got none: "):
        Tokenizer.load(plain)
    (plain / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match="expected a file, got nothing of that name"):
        Tokenizer.load(plain)


def test_bad_text_and_ids(plain: Path) -> None:
    tokenizer = Tokenizer.load(plain)
    with pytest.raises(InvalidInput, match="text: expected valid Unicode"):
        tokenizer.encode("a\ud800b")
    for bad in (-1, 1 << 32):
        with pytest.raises(InvalidInput, match="ids: expected"):
            tokenizer.decode([3, bad])
    assert tokenizer.decode([299_999]) == "", "padding rows of a vocabulary have no text"


def pieces(tokenizer: Tokenizer, ids: Sequence[int], context: Sequence[int] = ()) -> list[str]:
    stream = IncrementalDetokenizer(tokenizer, context)
    return [*(stream.push(i) for i in ids), stream.finish()]


@settings(deadline=None, max_examples=150)
@given(text=st.text(max_size=60))
def test_a_stream_shows_whole_characters_only(smollm: Tokenizer, text: str) -> None:
    text = text.replace("\ufffd", "?")
    got = pieces(smollm, smollm.encode(text, add_special=False))
    assert "".join(got) == smollm.decode(smollm.encode(text, add_special=False))
    # The vocabulary lacks some 20 bytes; characters that need them cannot come back whole.
    assert "".join(got) != text or not any("\ufffd" in piece for piece in got)


@settings(deadline=None, max_examples=150)
@given(ids=st.lists(st.one_of(st.integers(0, 280), st.integers(0, 49151)), max_size=120))
def test_a_stream_adds_up_to_decode_for_any_ids(smollm: Tokenizer, ids: list[int]) -> None:
    """Low ids are single bytes, so most of these are broken UTF-8."""
    assert "".join(pieces(smollm, ids)) == smollm.decode(ids)


def test_broken_bytes_do_not_hold_the_stream_for_ever(smollm: Tokenizer) -> None:
    lone = next(i for i in range(17, 280) if smollm.decode([i, i]) == "\ufffd\ufffd")
    stream = IncrementalDetokenizer(smollm)
    shown = [stream.push(lone) for _ in range(200)]
    assert sum(map(len, shown)) > 150
    assert "".join(shown) + stream.finish() == smollm.decode([lone] * 200)


def test_context_joins_the_first_token_to_the_prompt(smollm: Tokenizer) -> None:
    ids = smollm.encode("A 日本 B", add_special=False)
    for cut in range(len(ids)):
        got = "".join(pieces(smollm, ids[cut:], ids[:cut]))
        whole = smollm.decode(ids[:cut]).rstrip("\ufffd")
        assert whole + got == "A 日本 B"


def sentencepiece_like() -> Tokenizer:
    """The decoder of Mixtral's own tokenizer: metaspace, byte fallback, one leading space stripped."""
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        "▁",
        "▁the",
        "▁Paris",
        "s",
        "é",
        "▁▁",
    ]
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab={t: i for i, t in enumerate(tokens)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(inner.to_str().encode(), {"bos_token": "<s>", "add_bos_token": True})


def test_byte_fallback_streams_whole_characters() -> None:
    tokenizer = sentencepiece_like()
    assert tokenizer.encode("é")[0] == 1
    emoji = [3 + byte for byte in "😀日".encode()]
    ids = [261, *emoji, 260, 262, 261, *emoji, *emoji]
    got = pieces(tokenizer, ids)
    assert "".join(got) == tokenizer.decode(ids) == "Paris😀日 thes Paris😀日😀日"
    assert not any("\ufffd" in piece for piece in got)
    assert got[0] == "Paris"
    assert pieces(tokenizer, [261], context=[1, 260])[0] == " Paris", "joined to a prompt, the space stays"
