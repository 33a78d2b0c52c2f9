"""Bytes that are no UTF-8: a stream, however it is cut, gives what Python makes of the whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from colibri.models.detokenizer import IncrementalDetokenizer
from colibri.models.plain_tokenizer import write_plain_tokenizer
from colibri.models.token_bytes import TokenBytes, _letters
from colibri.models.tokenizer import Tokenizer

WORDS = ["▁", "▁the", "s", "é", "▁▁", "w42", "日"]
FALLBACK = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


def byte_fallback() -> Tokenizer:
    """The decoder of Mixtral's own tokenizer. Ids: 3 specials, 256 bytes, WORDS."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *WORDS]
    inner = tokenizers.Tokenizer(
        models.BPE(
            vocab={t: i for i, t in enumerate(tokens)}, merges=[], unk_token="<unk>", byte_fallback=True
        )
    )
    inner.decoder = FALLBACK
    inner.add_special_tokens(["<unk>", "<s>", "</s>"])
    return Tokenizer(inner.to_str().encode(), {"bos_token": "<s>"})


@pytest.fixture(scope="module", params=["byte fallback", "byte level"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tokenizer]:
    if request.param == "byte fallback":
        made = byte_fallback()
    else:
        folder: Path = tmp_path_factory.mktemp("plain")
        write_plain_tokenizer(folder, 300, 64)
        made = Tokenizer.load(folder)
    yield made
    made.close()


def ids_of(tokenizer: Tokenizer, raw: bytes) -> list[int]:
    """A token for each byte."""
    known = tokenizer.token_bytes
    assert known is not None
    by_byte: dict[bytes, int] = {}
    for token in range(3, 259):
        by_byte.setdefault(known.of_token(token), token)
    return [by_byte[bytes([byte])] for byte in raw]


def streamed(tokenizer: Tokenizer, ids: Sequence[int], context: Sequence[int] = ()) -> str:
    stream = IncrementalDetokenizer(tokenizer, context)
    return "".join([*(stream.push(i) for i in ids), stream.finish()])


def stripped(tokenizer: Tokenizer, text: str) -> str:
    """Byte fallback comes with a space at the beginning that is not the text's."""
    known = tokenizer.token_bytes
    return text[1:] if known is not None and known.library_differs and text.startswith(" ") else text


ANY_BYTES = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=3),
        st.text(min_size=1, max_size=3).map(lambda text: text.encode("utf-8")),
        st.text(min_size=1, max_size=1).map(lambda text: text.encode("utf-8")[:-1]),
        st.sampled_from(
            [b"\xe2\x82\xac\xff", b"\xf0\x9f", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80"]
        ),
    ),
    max_size=20,
).map(b"".join)


@settings(deadline=None, max_examples=300)
@given(raw=ANY_BYTES)
def test_any_bytes_as_python_reads_them(tokenizer: Tokenizer, raw: bytes) -> None:
    ids = ids_of(tokenizer, raw)
    expected = stripped(tokenizer, raw.decode("utf-8", "replace"))
    assert streamed(tokenizer, ids) == expected
    assert tokenizer.decode(ids) == expected


@settings(deadline=None, max_examples=200)
@given(raw=ANY_BYTES, at=st.integers(0, 60))
def test_wherever_the_prompt_ends(tokenizer: Tokenizer, raw: bytes, at: int) -> None:
    """What the prompt left unfinished belongs to the answer; what it spoilt does not."""
    ids, at = ids_of(tokenizer, raw), min(at, len(raw))
    begun = IncrementalDetokenizer(tokenizer)
    shown = "".join(map(begun.push, ids[:at]))
    assert shown + streamed(tokenizer, ids[at:], ids[:at]) == stripped(
        tokenizer, raw.decode("utf-8", "replace")
    )


@settings(deadline=None, max_examples=200)
@given(ids=st.lists(st.integers(0, 270), max_size=60))
def test_any_ids_add_up_to_decode(tokenizer: Tokenizer, ids: list[int]) -> None:
    assert streamed(tokenizer, ids) == tokenizer.decode(ids)


def test_one_stray_byte_costs_one_character(tokenizer: Tokenizer) -> None:
    """[E2 82 AC][FF] w42: the euro sign is out before the stray byte comes."""
    ids = [*ids_of(tokenizer, b"\xe2\x82\xac\xff w42")]
    stream = IncrementalDetokenizer(tokenizer)
    assert [stream.push(i) for i in ids] == ["", "", "€", "\ufffd", " ", "w", "4", "2"]
    assert tokenizer.decode(ids) == "€\ufffd w42"


@settings(deadline=None, max_examples=200)
@given(text=st.text(max_size=30))
def test_whole_characters_as_the_library_reads_them(text: str) -> None:
    """Ours stands in for the library's byte fallback, so where all is UTF-8 they agree."""
    tokens = [
        f"<0x{byte:02X}>" if at % 3 else chr(byte) for at, byte in enumerate(text.encode()) if byte < 128
    ]
    tokens += [f"<0x{byte:02X}>" for byte in text.encode()]
    vocab = {token: at for at, token in enumerate(dict.fromkeys(["<unk>", *tokens]))}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    inner.decoder = FALLBACK
    known = TokenBytes.of(inner)
    assert known is not None
    ids = [vocab[token] for token in tokens]
    assert known.text(ids) == inner.decode(ids)


def test_the_byte_level_alphabet_is_the_librarys() -> None:
    assert _letters().keys() == set(pre_tokenizers.ByteLevel.alphabet())
    for text in ("a", "é", "日", " \n\x00"):
        spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)[0][
            0
        ]
        assert bytes(_letters()[letter] for letter in spelled) == text.encode()


def test_long_runs_are_decoded_alike(tokenizer: Tokenizer) -> None:
    """More than 256 ids go to the confined process."""
    raw = b"\xe2\x82\xac\xff w42 " * 100
    assert tokenizer.decode(ids_of(tokenizer, raw)) == raw.decode("utf-8", "replace")


@pytest.mark.parametrize(
    "decoder", [None, decoders.Metaspace(), decoders.WordPiece(), decoders.CTC(), decoders.BPEDecoder()]
)
def test_other_decoders_are_the_librarys(decoder: decoders.Decoder | None) -> None:
    inner = tokenizers.Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if decoder is not None:
        inner.decoder = decoder
    assert TokenBytes.of(inner) is None
