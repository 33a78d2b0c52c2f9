"""What a bad input must be answered with: one code, and one line that names field, expected and got."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from colibri.errors import Code

#: Stands in expected texts for what differs from run to run.
ANY = "<any>"
#: Stands in expected texts for the folder of the checkpoint.
MODEL = "<MODEL>"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The precise error. `where`: the file, in errors about files; `field` empty: the whole file is at fault.

    `text`: the whole line, for errors that are no matter of a value (a full queue, an expired deadline).
    """

    code: Code
    field: str = ""
    expected: str = ""
    got: str = ""
    where: str = ""
    text: str = ""

    @property
    def line(self) -> str:
        """The message as users read it."""
        if self.text:
            return self.text
        label = ": ".join(part for part in (self.where, self.field) if part)
        return f"{label}: expected {self.expected}, got {self.got}"

    def differs(self, message: str, folders: Mapping[str, str] = {}) -> str:
        """Empty where `message` is this refusal's line, else both, for a person. folders: path -> what stands for it
        in expected texts."""
        for path, name in folders.items():
            message = message.replace(path, name)
        pattern = re.escape(self.line).replace(re.escape(ANY), ".+")
        return "" if re.fullmatch(pattern, message) else f"expected {self.line!r}, got {message!r}"


def invalid(field: str, expected: str, got: str) -> Refusal:
    """INVALID_ARGUMENT for a value."""
    return Refusal(Code.INVALID_ARGUMENT, field, expected, got)


def said(code: Code, text: str) -> Refusal:
    """A refusal that is not about one value."""
    return Refusal(code, text=text)
