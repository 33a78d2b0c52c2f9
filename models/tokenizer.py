"""Turn text into token ids and back, with the `tokenizers` library and the checkpoint's tokenizer.json.

Texts are encoded in a confined process: their sender decides how much work that is, the library holds the
interpreter meanwhile, and a regular expression of the checkpoint may never end. Here only short runs of ids are
decoded, with a decoder that has no regular expressions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from colibri.deadline import Deadline
from colibri.errors import CheckpointError, InvalidInput
from colibri.kernels.api import U32
from colibri.models.config import MixtralConfig, wrong
from colibri.models.confined.process import Confined, Fault, Limits, NoAnswer
from colibri.models.json_file import read_bounded, read_object
from colibri.models.text_names import TOKENIZER_CONFIG_NAME, TOKENIZER_NAME
from colibri.models.token_bytes import TokenBytes

_MAX_TOKENIZER_BYTES = 128 << 20
_MAX_CONFIG_BYTES = 16 << 20
#: A MiB of text takes half a second of CPU and 0.4 GiB.
LIMITS = Limits(load_s=20.0, answer_s=4.0, load_bytes=3 << 30, answer_bytes=1 << 30)
#: Longer runs of ids are decoded in the confined process.
_SHORT_IDS = 256
#: Of a decoded text.
_MAX_TEXT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Spelled:
    """Token ids, with the text of each id that occurs."""

    ids: U32
    pieces: dict[int, str]


class Tokenizer:
    """A checkpoint's tokenizer. Threads may share it. It holds a process; `close` ends that.

    raw: the bytes of tokenizer.json.
    settings: tokenizer_config.json.
    where: the file, for errors.
    limits: of the process.

    Attributes:
    vocab: number of ids it knows.
    special: ids of control tokens.
    bos: id or None.
    add_bos: whether a plain text begins with it.
    bos_text, eos_text: how these read in a chat template.
    bytes_per_token: most bytes of text per token; None: no bound.
    token_bytes: the bytes of each id; None if a text is more than its tokens' bytes.
    """

    def __init__(
        self,
        raw: bytes,
        settings: dict[str, Any],
        config: MixtralConfig | None = None,
        where: str = TOKENIZER_NAME,
        limits: Limits = LIMITS,
    ) -> None:
        self.bos_text = _token_text(settings, "bos_token")
        self.eos_text = _token_text(settings, "eos_token")
        head = {
            "name": TOKENIZER_NAME,
            "path": where,
            "vocab": None if config is None else config.vocab,
            "bos": None if config is None else config.bos,
            "bos_text": self.bos_text,
            "add_bos": _flag(settings, "add_bos_token"),
            "added": settings.get("added_tokens_decoder"),
            "split_special": _flag(settings, "split_special_tokens") or False,
        }
        self._limits = limits
        self._confined = Confined(
            TOKENIZER_NAME, "colibri.models.confined.tokenizer_child", (head, raw), limits
        )
        facts, decoder = self._confined.first_reply
        self.vocab: int = facts["vocab"]
        self.special = frozenset(facts["special"])
        self.bos: int | None = facts["bos"]
        self.add_bos: bool = facts["add_bos"]
        self.bytes_per_token: int | None = facts["bytes_per_token"]
        try:
            self._decoder = tokenizers.Tokenizer.from_buffer(decoder)
        except BaseException as error:
            raise _librarys(error, where, "a tokenizer", "none") from error
        self.token_bytes = TokenBytes.of(self._decoder)

    @classmethod
    def load(cls, folder: str | Path, config: MixtralConfig | None = None) -> Tokenizer:
        """Loads tokenizer.json and, if there is one, tokenizer_config.json of a checkpoint folder.

        Raises CheckpointError if a file is missing, damaged, too large, holds more tokens than the model, or takes
        too much time or memory.
        """
        path = Path(folder) / TOKENIZER_NAME
        raw = read_bounded(path, _MAX_TOKENIZER_BYTES)
        settings_path = Path(folder) / TOKENIZER_CONFIG_NAME
        settings = read_object(settings_path, _MAX_CONFIG_BYTES) if settings_path.exists() else {}
        return cls(raw, settings, config, str(path))

    @property
    def pids(self) -> list[int]:
        """Returns the ids of the live processes."""
        return self._confined.pids

    def close(self) -> None:
        """Ends the processes. Nothing may be encoded afterwards."""
        self._confined.close()

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Does as `ids`, and returns a list."""
        ids: list[int] = self.ids(text, add_special).tolist()
        return ids

    def ids(
        self,
        text: str,
        add_special: bool = True,
        *,
        most: int | None = None,
        field: str = "text",
        deadline: Deadline = Deadline(),  # noqa: B008 - frozen
    ) -> U32:
        """Returns the token ids of `text`, at most `most`. Control tokens spelled out in it become their ids, as in
        transformers, unless the checkpoint sets split_special_tokens.

        add_special: begin with exactly one BOS, if the checkpoint wants one; none is added before one that is
            there. Nothing is put at the end. Rendered chat templates write their own BOS: pass False.
        field: names the text in errors.

        Raises InvalidInput for text that is not valid Unicode, is too long or takes too much time or memory;
        DeadlineExpired; Busy if other callers' texts take all the time.
        """
        return self._encode(text, add_special, most, field, deadline, None).ids

    def spelled(
        self, text: str, add_special: bool, most_bytes: int, *, field: str, deadline: Deadline
    ) -> Spelled:
        """Does as `ids`, and returns the text of each id too. most_bytes: size of all of it on the wire."""
        return self._encode(text, add_special, None, field, deadline, most_bytes)

    def decode(
        self,
        ids: Sequence[int] | U32,
        skip_special: bool = True,
        *,
        most_bytes: int = _MAX_TEXT_BYTES,
        field: str = "ids",
        deadline: Deadline = Deadline(),  # noqa: B008 - frozen
    ) -> str:
        """Returns the text of the ids; bytes that are not UTF-8 read U+FFFD.

        most_bytes: of the text.

        Raises InvalidInput for a bad id or a longer text.
        """
        if len(ids) > _SHORT_IDS:
            return self._decode_many(_checked_array(ids), skip_special, most_bytes, field, deadline)
        for i in ids:
            if not 0 <= i < 1 << 32:
                raise _no_id(i)
        known = self.token_bytes
        if known is not None and known.library_differs:
            return known.text(i for i in ids if not (skip_special and i in self.special))
        try:
            return self._decoder.decode(list(ids), skip_special_tokens=skip_special)
        except BaseException as error:
            raise _librarys(error, TOKENIZER_NAME, "a tokenizer that decodes any ids", "an error") from error

    def _encode(
        self,
        text: str,
        add_special: bool,
        most: int | None,
        field: str,
        deadline: Deadline,
        within: int | None,
    ) -> Spelled:
        try:
            raw = text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidInput(field, "valid Unicode without lone surrogates", error.reason) from None
        if most is not None and self.bytes_per_token is not None and len(raw) > most * self.bytes_per_token:
            longest = most * self.bytes_per_token
            raise InvalidInput(
                field,
                f"at most {most} tokens (the context holds {most + 1}), which stand for at most {longest} bytes",
                f"{len(raw)} bytes",
            )
        asked = {"op": "encode", "add_special": add_special, "most": most, "spell_within": within}
        head, ids = self._ask(asked, raw, field, deadline)
        if most is not None and head["count"] > most:
            expected = f"at most {most} tokens (the context holds {most + 1})"
            raise InvalidInput(field, expected, f"{head['count']} tokens")
        return Spelled(np.frombuffer(ids, dtype=np.uint32), dict(map(tuple, head.get("pieces", ()))))

    def _decode_many(
        self, ids: U32, skip_special: bool, most_bytes: int, field: str, deadline: Deadline
    ) -> str:
        asked = {"op": "decode", "skip_special": skip_special, "most": most_bytes}
        return self._ask(asked, ids.tobytes(), field, deadline)[1].decode()

    def _ask(
        self, asked: dict[str, Any], blob: bytes, field: str, deadline: Deadline
    ) -> tuple[dict[str, Any], bytes]:
        try:
            head, reply = self._confined.ask(asked, blob, deadline, len(blob))
        except NoAnswer as error:
            if error.fault is Fault.TIME:
                expected, got = (
                    f"what the tokenizer takes within {self._limits.answer_s:g} s of CPU time",
                    "no end",
                )
            elif error.fault is Fault.MEMORY:
                expected, got = (
                    f"what the tokenizer takes in {self._limits.answer_bytes >> 20} MiB of memory",
                    "more",
                )
            else:
                raise
            raise InvalidInput(field, expected, got) from None
        if "error" in head:
            raise CheckpointError(head["error"])
        if "refused" in head:
            _, expected, got = head["refused"]
            raise InvalidInput(field, expected, got)
        return head, reply


def _checked_array(ids: Sequence[int] | U32) -> U32:
    if isinstance(ids, np.ndarray):
        return ids.astype(np.uint32, copy=False)
    wide = np.array(ids, dtype=np.int64)
    wrong_at = np.flatnonzero((wide < 0) | (wide >= 1 << 32))
    if len(wrong_at):
        raise _no_id(int(wide[wrong_at[0]]))
    return wide.astype(np.uint32)


def _no_id(got: int) -> InvalidInput:
    return InvalidInput("ids", "token ids, which are never negative and have 32 bits", got)


def _librarys(error: BaseException, where: str, expected: str, got: str) -> BaseException:
    """Returns a library's error as a typed one; any other error unchanged.

    The library raises plain Exception, and PanicException, which is not one, if its Rust code panics.
    """
    if isinstance(error, Exception) or type(error).__name__ == "PanicException":
        return CheckpointError.of(where, "", expected, f"{got}: {error}")
    return error


def _flag(settings: dict[str, Any], field: str) -> bool | None:
    """Returns a switch of tokenizer_config.json; None if it is not there."""
    value = settings.get(field)
    if value is not None and not isinstance(value, bool):
        raise wrong(field, "true or false", value, TOKENIZER_CONFIG_NAME)
    return value


def _token_text(settings: dict[str, Any], field: str) -> str | None:
    """Returns a special token of tokenizer_config.json: a string, or an object with its text in `content`."""
    value = settings.get(field)
    if isinstance(value, dict):
        value = value.get("content")
    if value is not None and not isinstance(value, str):
        raise wrong(field, "a string or an object with `content`", value, TOKENIZER_CONFIG_NAME)
    return value
