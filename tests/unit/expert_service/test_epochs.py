"""How far epochs may move, and that a refused one moves nothing."""

from __future__ import annotations

import pytest

from colibri.errors import InvalidInput, StaleEpoch
from colibri.expert_service.epochs import AHEAD, MOST_FIRST, Epochs


def test_the_first_one_is_anybodys() -> None:
    epochs = Epochs()
    epochs.check(MOST_FIRST)
    with pytest.raises(InvalidInput, match=f"epoch: expected at most {MOST_FIRST}, got {1 << 32}"):
        epochs.check(1 << 32)
    with pytest.raises(InvalidInput, match=f"epochs_below: expected at most {MOST_FIRST}, got {1 << 40}"):
        epochs.check_retire(1 << 40)
    assert (epochs.oldest, epochs.newest) == (0, 0)


def test_later_ones_go_on_from_it() -> None:
    epochs = Epochs()
    epochs.name(7)
    text = f"at most {7 + AHEAD}, {AHEAD} beyond the newest that was named \\(7\\), got {8 + AHEAD}"
    with pytest.raises(InvalidInput, match=f"epoch: expected {text}"):
        epochs.check(8 + AHEAD)
    with pytest.raises(InvalidInput, match=f"epochs_below: expected {text}"):
        epochs.check_retire(8 + AHEAD)
    assert epochs.newest == 7
    epochs.check(7 + AHEAD)
    epochs.check_retire(7 + AHEAD)
    epochs.name(3)
    assert epochs.newest == 7


def test_retired_ones_are_stale() -> None:
    epochs = Epochs()
    epochs.retire_below(5)
    epochs.retire_below(0)
    assert (epochs.oldest, epochs.newest) == (5, 5)
    epochs.check(5)
    with pytest.raises(StaleEpoch, match="expected at least 5, the oldest still served, got 4"):
        epochs.check(4)
