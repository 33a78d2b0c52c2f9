"""The page allocator and the arrays behind it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colibri.coordinator.kv_cache import KvCache, KvShape, PageAllocator
from colibri.errors import ConfigError
from colibri.kernels.api import ComputeMode


@given(st.integers(0, 40), st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=60))
def test_pages_are_never_shared_nor_lost(total: int, moves: list[tuple[bool, int]]) -> None:
    pages = PageAllocator(total)
    held: list[tuple[int, ...]] = []
    for take, number in moves:
        if take:
            got = pages.take(number)
            if got is None:
                assert number > pages.free
            else:
                assert len(got) == number
                held.append(got)
        elif held:
            pages.give_back(held.pop(number % len(held)))
        taken = [page for each in held for page in each]
        assert len(set(taken)) == len(taken)
        assert all(0 <= page < total for page in taken)
        assert pages.free + len(taken) == total


def test_wrong_pages_are_refused_and_change_nothing() -> None:
    pages = PageAllocator(4)
    first = pages.take(2)
    assert first is not None
    for wrong in ([3], [first[0], first[0]], [first[0], 3], [99]):
        with pytest.raises(ValueError, match="pages that are taken"):
            pages.give_back(wrong)
    assert pages.free == 2
    pages.give_back(first)
    with pytest.raises(ValueError, match="pages that are taken"):
        pages.give_back(first)
    with pytest.raises(ValueError, match="at least 0"):
        pages.take(-1)


@pytest.mark.parametrize("mode", list(ComputeMode))
@pytest.mark.parametrize("page", [8, 16, 32, 64])
def test_shapes(mode: ComputeMode, page: int) -> None:
    cache = KvCache(KvShape(layers=3, kv_heads=2, head_dim=6, page=page, tokens=150), mode)
    assert cache.shape.pages == 150 // page
    table = cache.page_table([np.array([1, 0], np.int32), np.array([], np.int32), np.array([2], np.int32)])
    assert table.tolist() == [[1, 0], [-1, -1], [2, -1]]
    rows = np.zeros(1, np.int32)
    views = cache.views(table, rows, rows)
    assert len(views) == 3
    for view in views:
        for array in (view.k, view.v):
            assert array.shape == (150 // page, 2, page, 6)
            assert array.dtype == (np.uint16 if mode is ComputeMode.BF16 else np.float32)
            assert array.flags.c_contiguous
    views[1].k[0] = 1
    assert not views[0].k.any()
    assert not views[2].k.any()
    assert not views[1].v.any()
    assert cache.nbytes == 2 * sum(view.k.nbytes for view in views)


@pytest.mark.parametrize(
    ("page", "tokens", "message"),
    [
        (12, 100, "kv_page: expected one of"),
        (128, 1000, "kv_page"),
        (16, 15, "kv_tokens: expected at least one page"),
    ],
)
def test_wrong_shapes(page: int, tokens: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        KvShape(1, 1, 2, page, tokens)


def test_reserve_rounds_up_and_refuses_what_does_not_fit() -> None:
    cache = KvCache(KvShape(1, 1, 2, 8, 32), ComputeMode.FP32)
    [first] = cache.reserve(9) or []
    assert len(first) == 2
    assert cache.reserve(17) is None
    assert cache.pages.free == 2
    assert len(cache.reserve(16) or []) == 1
    assert cache.reserve(1) is None
    cache.release(first)
    assert cache.pages.free == 2


@pytest.mark.parametrize("tokens", [1 << 36, 1 << 60])
def test_a_cache_beyond_all_memory_is_a_configuration_error(tokens: int) -> None:
    with pytest.raises(ConfigError, match="kv_tokens: expected a cache that memory can hold"):
        KvCache(KvShape(1000, 1000, 1000, 8, tokens), ComputeMode.FP32)
