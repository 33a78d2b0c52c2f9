"""One damaged checkpoint: what is done to a good one, and the line that must refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from colibri.errors import Code
from tests.integration.bad_input.case import Refusal
from tests.integration.bad_input.folders import Damage


class Stage(Enum):
    """When it shows: while headers are read, while the tokenizer or the chat template is loaded, while weights are
    packed."""

    OPEN = "open"
    TOKENIZER = "tokenizer"
    TEMPLATE = "template"
    WEIGHTS = "weights"


@dataclass(frozen=True, slots=True)
class CheckpointCase:
    """`how`: what is done to a good checkpoint."""

    id: str
    how: str
    damage: Damage
    refusal: Refusal
    stage: Stage = Stage.OPEN


def wrong(where: str, field: str, expected: str, got: str) -> Refusal:
    """FAILED_PRECONDITION for a field of a file."""
    return Refusal(Code.FAILED_PRECONDITION, field, expected, got, where)
