"""Which worker may hold which expert, where workers do not all compute the same bits."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.errors import InvalidInput
from colibri.numerics_homes import NumericsHomes, assign_homes, spread_by_home

TWO = NumericsHomes(("a", "b", "a", "b", "a"), "a", {"w1": "b", "w3": "b"})


@given(
    st.integers(1, 64),
    st.dictionaries(st.sampled_from(["cpu", "cuda", "other"]), st.integers(1, 40), min_size=1),
)
def test_each_kind_gets_its_part(experts: int, workers: dict[str, int]) -> None:
    if experts < len(workers):
        with pytest.raises(InvalidInput, match=f"experts: expected at least {len(workers)}"):
            assign_homes(experts, workers)
        return
    found = assign_homes(experts, workers)
    counts = Counter(found)
    assert len(found) == experts
    assert counts.keys() == workers.keys()
    total = sum(workers.values())
    starved = [home for home in workers if experts * workers[home] < total]
    for home, number in workers.items():
        exact = experts * number / total
        assert abs(counts[home] - exact) < 1 + len(starved) or counts[home] == 1
    assert found == assign_homes(experts, dict(reversed(workers.items()))), "whoever is named first"


def test_those_of_a_kind_lie_apart() -> None:
    assert assign_homes(8, {"a": 1, "b": 3}) == ("b", "a", "b", "b", "b", "a", "b", "b")
    assert assign_homes(4, {"a": 2, "b": 2}) == assign_homes(4, {"a": 1, "b": 1}) == ("a", "b", "a", "b")


def test_the_first_placement_keeps_them_apart() -> None:
    placement = spread_by_home(3, ["w0", "w1", "w2", "w3", "w4"], TWO, 2)
    for experts in placement.holders:
        for expert, names in enumerate(experts):
            assert len(set(names)) == 2
            assert all(TWO.may_hold(placement.workers[index], expert) for index in names)
    assert {index for experts in placement.holders for names in experts for index in names} == set(range(5))


def test_what_cannot_be_placed() -> None:
    with pytest.raises(
        InvalidInput, match=r"replicas: expected at most 1 \(the number of workers of b\), got 2"
    ):
        spread_by_home(1, ["w0", "w1", "w2"], TWO, 2)
    with pytest.raises(InvalidInput, match="workers: expected at least one of b, which experts belong to"):
        spread_by_home(1, ["w0", "w2"], TWO)
