"""The process that encodes texts: `python -m colibri.models.confined.tokenizer_child`, started by tokenizer."""

from __future__ import annotations

import json
from array import array
from typing import Any

import tokenizers

from colibri.errors import CheckpointError, InvalidInput
from colibri.models.confined.added_tokens import add_tokens
from colibri.models.confined.child import Answer, Message, serve
from colibri.models.confined.text_rules import check_decoder, check_tokens
from colibri.models.confined.token_size import most_bytes_per_token
from colibri.models.token_bytes import TokenBytes

CONFIG_NAME = "tokenizer_config.json"
#: Without a model: 24 bits, more than any vocabulary.
_MOST_IDS = 1 << 24


def library_error(error: BaseException, where: str, expected: str, got: str) -> BaseException:
    """Returns a library's error as a typed one; any other error unchanged.

    The library raises plain Exception, and PanicException, which is not one, if its Rust code panics.
    """
    if isinstance(error, MemoryError | CheckpointError | InvalidInput):
        return error
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return CheckpointError.of(where, "", expected, f"{got}: {error}")
    return error


class _Encoder:
    """Encodes texts. head: what `Tokenizer` sends with the file's bytes."""

    def __init__(self, head: dict[str, Any], raw: bytes) -> None:
        self._name = name = head["name"]
        try:
            inner = tokenizers.Tokenizer.from_buffer(raw)
            # Whatever tokenizer.json was saved with: prompts are checked against limits, never cut silently.
            inner.no_truncation()
            inner.no_padding()
            add_tokens(inner, head["added"], head["vocab"] or _MOST_IDS, CONFIG_NAME)
            size = inner.get_vocab_size(with_added_tokens=True)
            tokens = inner.get_vocab(with_added_tokens=True)
            dropout = getattr(inner.model, "dropout", None)
            written = inner.to_str()
            # Where set, a control token spelled out in a text stays text, as in transformers.
            inner.encode_special_tokens = head["split_special"]
        except BaseException as error:
            raise library_error(error, head["path"], "a tokenizer", "none") from error
        self._inner = inner
        self._check(size, tokens, dropout, head["vocab"])
        document = json.loads(written)
        check_decoder(document["decoder"], name)
        check_tokens(tokens, name)
        self.bos = inner.token_to_id(head["bos_text"]) if head["bos_text"] else head["bos"]
        self.add_bos = self._bos_rule(head["add_bos"], head["bos_text"])
        added = inner.get_added_tokens_decoder()
        special = sorted(i for i, token in added.items() if token.special)
        self.facts = {
            "vocab": size,
            "special": special,
            "bos": self.bos,
            "add_bos": self.add_bos,
            "bytes_per_token": most_bytes_per_token(document),
        }
        self._special = frozenset(special)
        self._known = TokenBytes.of(inner)
        # What is left decodes: it has no part whose cost a text could size.
        for part in ("normalizer", "pre_tokenizer", "post_processor", "truncation", "padding"):
            document[part] = None
        for token in document["added_tokens"]:
            token["normalized"] = False
        self.decoder = json.dumps(document, ensure_ascii=False).encode()

    def answer(self, asked: dict[str, Any], blob: bytes) -> Message:
        if asked["op"] == "decode":
            return self._decode(asked, blob)
        text = blob.decode()
        try:
            # Releases nothing here, but leaves out the offsets: a third of the time and memory of `encode`.
            ids = self._inner.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except BaseException as error:  # a vocabulary without the unknown token, for one
            error = library_error(error, self._name, "a tokenizer that takes any text", "an error")
            if isinstance(error, CheckpointError):
                return {"error": error.message}, b""
            raise error from None
        if asked["add_special"] and self.add_bos and self.bos is not None and ids[:1] != [self.bos]:
            ids.insert(0, self.bos)
        head: dict[str, Any] = {"count": len(ids)}
        if asked["most"] is not None and len(ids) > asked["most"]:
            return head, b""
        if asked["spell_within"] is not None:
            pieces = {token: self._inner.decode([token], skip_special_tokens=False) for token in set(ids)}
            sizes = {token: len(piece.encode()) + 6 for token, piece in pieces.items()}
            _check_reply("text", sum(map(sizes.__getitem__, ids)), asked["spell_within"])
            head["pieces"] = list(pieces.items())
        return head, array("I", ids).tobytes()

    def _decode(self, asked: dict[str, Any], blob: bytes) -> Message:
        ids = array("I", blob).tolist()
        known = self._known
        try:
            if known is not None and known.library_differs:
                text = known.text(
                    i for i in ids if not (asked["skip_special"] and i in self._special)
                ).encode()
            else:
                text = self._inner.decode(ids, skip_special_tokens=asked["skip_special"]).encode()
        except BaseException as error:
            error = library_error(error, self._name, "a tokenizer that decodes any ids", "an error")
            if isinstance(error, CheckpointError):
                return {"error": error.message}, b""
            raise error from None
        _check_reply("ids", len(text), asked["most"])
        return {}, text

    def _check(self, size: int, tokens: dict[str, int], dropout: float | None, vocab: int | None) -> None:
        name = self._name
        if vocab is not None:
            if size > vocab:
                raise CheckpointError.of(
                    name, "vocabulary", f"at most vocab_size = {vocab} tokens", repr(size)
                )
            largest = max(tokens.values(), default=0)
            if largest >= vocab:
                raise CheckpointError.of(name, "vocabulary", f"ids from 0 to {vocab - 1}", repr(largest))
        if dropout:
            expected = "none, since equal texts must give equal ids"
            raise CheckpointError.of(name, "model.dropout", expected, repr(dropout))

    def _bos_rule(self, stated: bool | None, bos_text: str | None) -> bool:
        if stated is not None:
            if stated and self.bos is None:
                expected = "a token, since add_bos_token is true"
                raise CheckpointError.of(CONFIG_NAME, "bos_token", expected, repr(bos_text))
            return stated
        # Silent configuration: what the file's own post-processor does to an empty text.
        return self.bos is not None and self._inner.encode("").ids[:1] == [self.bos]


def _check_reply(field: str, size: int, most: int) -> None:
    if size > most:
        raise InvalidInput(field, f"what makes a reply of at most {most} bytes", f"{size} bytes")


def _begin(head: dict[str, Any], raw: bytes) -> tuple[Answer, Message]:
    encoder = _Encoder(head, raw)
    return encoder.answer, (encoder.facts, encoder.decoder)


if __name__ == "__main__":
    serve(_begin)
