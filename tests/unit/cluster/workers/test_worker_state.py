"""What a worker says compared with what is wanted, and what is done about it."""

from __future__ import annotations

import pytest

from colibri.cluster.workers.remedies import (
    MOST_MENDS,
    MOST_STARTS,
    OUT_S,
    PACE_S,
    STARTS_WINDOW_S,
    TRIES,
    Remedies,
    Remedy,
)
from colibri.cluster.workers.worker_state import Identities, Wanted, compare
from colibri.v1 import expert_pb2

EXPERTS = frozenset({(0, 1), (0, 2), (1, 0)})
WANTED = Wanted("w1", 7, EXPERTS, 5, Identities("m", "p", "n", {"w2": "other"}))


def said(**changes: object) -> expert_pb2.StatusReply:
    fields: dict[str, object] = {
        "worker": "w1",
        "incarnation": 7,
        "epoch_min": 5,
        "state": 1,
        "model_hash": "m",
        "pack_hash": "p",
        "expert_numerics_id": "n",
        "held": [expert_pb2.ExpertId(layer=layer, expert=expert) for layer, expert in EXPERTS],
    }
    return expert_pb2.StatusReply(**(fields | changes))  # type: ignore[arg-type]


def test_as_wanted() -> None:
    for reply in (said(), said(epoch_min=0)):
        found = compare(WANTED, reply)
        assert (found.wrong, found.text, found.surplus) == (False, "", 0)
    assert compare(WANTED, said(held=[]), held=False).wrong is False


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"incarnation": 8}, "expected w1, incarnation 7, got w1, incarnation 8"),
        ({"worker": "w2"}, "expected w1, incarnation 7, got w2, incarnation 7"),
        ({"model_hash": "x"}, "model_hash: expected m, got x"),
        ({"pack_hash": ""}, "pack_hash: expected p, got none"),
        ({"expert_numerics_id": "x"}, "expert_numerics_id: expected n, got x"),
    ],
)
def test_another_process_or_other_bits(changes: dict[str, object], text: str) -> None:
    found = compare(WANTED, said(**changes))
    assert (found.other, found.wrong, found.text) == (True, True, text)


def test_an_older_build_tells_no_hashes() -> None:
    assert not compare(WANTED, said(state=0, model_hash="", pack_hash="")).wrong
    assert compare(WANTED, said(state=0, model_hash="", pack_hash="", expert_numerics_id="x")).other


def test_missing_surplus_and_epochs() -> None:
    found = compare(WANTED, said(held=[expert_pb2.ExpertId(layer=3, expert=3)], epoch_min=6))
    assert (found.missing, found.refuses, found.surplus, found.other) == (
        tuple(sorted(EXPERTS)),
        True,
        1,
        False,
    )
    assert found.text == (
        "it serves epochs from 6 on, and the placement in force is 5; it does not hold 0:1, 0:2, 1:0 of the 3 experts "
        "that it should"
    )
    more = [*said().held, expert_pb2.ExpertId(layer=3, expert=3)]
    assert (compare(WANTED, said(held=more)).wrong, compare(WANTED, said(held=more)).surplus) == (False, 1)


class Now:
    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


def test_tries_then_a_start_then_a_longer_absence() -> None:
    now = Now()
    remedies = Remedies(now)
    assert remedies.next(hopeless=True) is Remedy.RESTART
    for _ in range(TRIES):
        assert remedies.next(False) is Remedy.MEND
        remedies.failed()
    assert remedies.next(False) is Remedy.RESTART
    assert [remedies.restarted() for _ in range(MOST_STARTS + 1)] == [0.0] * MOST_STARTS + [OUT_S]
    assert remedies.next(False) is Remedy.MEND, "a new life has new tries"
    now.at += STARTS_WINDOW_S
    assert remedies.restarted() == 0.0


def test_what_goes_wrong_again_and_again_is_put_right_less_often() -> None:
    now = Now()
    remedies = Remedies(now)
    for _ in range(MOST_MENDS):
        assert remedies.next(False) is Remedy.MEND
        remedies.mended()
        now.at += 0.1
    assert remedies.next(False) is Remedy.WAIT
    now.at += PACE_S
    assert remedies.next(False) is Remedy.MEND
