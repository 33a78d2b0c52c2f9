"""One content for each expert, whoever says it."""

from __future__ import annotations

import pytest

from colibri.cluster.experts.contents import Contents
from colibri.cluster.workers.expert_calls import told_contents
from colibri.errors import NumericsMismatch
from colibri.v1 import expert_pb2

ONE, TWO = b"\x01" * 16, b"\x02" * 16


def test_the_same_from_all() -> None:
    contents = Contents()
    for worker in ("w0", "w1", "w0"):
        contents.hear(worker, {(0, 1): ONE, (2, 3): TWO})


def test_another_is_refused_and_changes_nothing() -> None:
    contents = Contents()
    contents.hear("w0", {(0, 1): ONE})
    for _ in range(2):
        with pytest.raises(NumericsMismatch) as info:
            contents.hear("w1", {(0, 1): TWO, (5, 0): ONE})
        assert info.value.peer == "w1"
        assert str(info.value).startswith(
            f"worker w1: expert 1 of layer 0: content: expected {ONE.hex()}, as worker w0 loaded it, got {TWO.hex()}: "
        )
    contents.hear("w0", {(0, 1): ONE})


def test_a_restarted_worker_is_compared_with_itself() -> None:
    contents = Contents()
    contents.hear("w0", {(0, 1): ONE})
    with pytest.raises(NumericsMismatch, match="as worker w0 loaded it"):
        contents.hear("w0", {(0, 1): TWO})


def test_what_is_believed_beforehand() -> None:
    contents = Contents()
    contents.believe({(0, 1): ONE}, "as pack.json says")
    with pytest.raises(NumericsMismatch, match=r"expected 01.*, as pack.json says, got 02"):
        contents.hear("w0", {(0, 1): TWO})


def test_a_worker_that_knows_no_digests() -> None:
    held = [expert_pb2.ExpertId(layer=0, expert=1)]
    assert told_contents(expert_pb2.StatusReply(held=held)) == {}
    assert told_contents(expert_pb2.StatusReply(held=held, held_digests=[ONE])) == {(0, 1): ONE}
    contents = Contents()
    contents.hear("old", {(0, 1): b""})
    contents.hear("new", {(0, 1): ONE})
