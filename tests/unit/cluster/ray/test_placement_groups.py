"""Neighbours by name on different hosts."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from colibri.cluster.ray.placement_groups import interleave


def test_one_of_each_in_turn() -> None:
    assert interleave([[0, 1], [2, 3], [4]]) == [0, 2, 4, 1, 3]
    assert interleave([]) == []
    assert interleave([[5, 6, 7]]) == [5, 6, 7]


@given(st.lists(st.integers(1, 5), min_size=2, max_size=6))
def test_nothing_is_lost_and_neighbours_differ_while_hosts_last(sizes: list[int]) -> None:
    numbers = iter(range(sum(sizes)))
    lists = [[next(numbers) for _ in range(size)] for size in sizes]
    host = {item: index for index, items in enumerate(lists) for item in items}
    found = interleave(lists)
    assert sorted(found) == sorted(host)
    second = sorted(sizes)[-2]
    for before, after in itertools.pairwise(found):
        if lists[host[after]].index(after) < second:
            assert host[before] != host[after]
