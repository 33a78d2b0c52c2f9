"""Refusals are told at once, and late to a connection that asks for many."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from colibri.errors import Unauthenticated
from colibri.rpc.refusals import Refusals


class Call:
    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.code: grpc.StatusCode | None = None
        self.details = ""
        self.ended = 0

    def peer(self) -> str:
        return self._peer

    def set_trailing_metadata(self, metadata: object) -> None:
        self.metadata = metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        self.code = code

    def set_details(self, details: str) -> None:
        self.details = details

    def send(self, reply: object) -> None:
        assert reply is None
        self.ended += 1


class Bench:
    def __init__(self) -> None:
        self.now = 50.0
        self.refusals = Refusals(3.0, lambda: self.now)

    def refuse(self, peer: str) -> Call:
        call: Any = Call(peer)
        self.refusals.refuse(call, Unauthenticated("authorization: expected a token, got none"), call.send)
        found: Call = call
        return found


def test_the_first_are_told_at_once_and_the_rest_late() -> None:
    bench = Bench()
    calls = [bench.refuse("a") for _ in range(50)]
    assert [call.ended for call in calls] == [1] * 20 + [0] * 30
    assert bench.refusals.kept == 30
    # Others notice nothing of it.
    assert bench.refuse("b").ended == 1
    bench.now += 2.9
    assert bench.refusals.tell_late() == 0
    bench.now += 0.2
    assert bench.refusals.tell_late() == 30
    assert {call.ended for call in calls} == {1}
    assert {(call.code, call.details) for call in calls} == {
        (grpc.StatusCode.UNAUTHENTICATED, "authorization: expected a token, got none")
    }
    assert bench.refusals.kept == 0


def test_who_waits_is_told_at_once_again() -> None:
    bench = Bench()
    for _ in range(30):
        bench.refuse("a")
    bench.now += 3.0
    assert [bench.refuse("a").ended for _ in range(8)] == [1] * 6 + [0] * 2


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("colibri.rpc.refusals._KEPT", 10)
    monkeypatch.setattr("colibri.rpc.refusals._CONNECTIONS", 5)
    bench = Bench()
    ended = sum(bench.refuse(f"connection {number}").ended for number in range(9) for _ in range(22))
    assert bench.refusals.kept == 10
    assert ended == 9 * 22 - 10
    assert len(bench.refusals._budgets) == 5
