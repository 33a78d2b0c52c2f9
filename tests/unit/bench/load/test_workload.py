"""Requests are functions of (seed, number)."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.bench.load.lengths import Fixed, Uniform
from colibri.bench.load.prompts import RandomIds, TextIds
from colibri.bench.load.workload import Workload, drawn
from colibri.errors import ConfigError

VOCAB = 50


def make(seed: int = 1, distinct: int | None = None) -> Workload:
    return Workload(
        RandomIds(VOCAB, {0, 7}), drawn(Uniform(2, 9), Uniform(1, 5)), seed=seed, distinct=distinct
    )


def test_any_order_gives_the_same_requests() -> None:
    forwards = [make().request(index) for index in range(20)]
    backwards = [make().request(index) for index in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert forwards != [make(seed=2).request(index) for index in range(20)]
    assert len({request.prompt_ids for request in forwards}) == 20
    assert len({request.seed for request in forwards}) == 20


def test_distinct_requests_repeat() -> None:
    workload = make(distinct=3)
    requests = [workload.request(index) for index in range(9)]
    assert requests[:3] == requests[3:6] == requests[6:]
    assert [request.variant for request in requests[:3]] == [0, 1, 2]
    assert requests[:3] == [make().request(index) for index in range(3)]
    with pytest.raises(ConfigError):
        make(distinct=0)


def test_random_ids_come_evenly_from_what_is_allowed() -> None:
    ids = RandomIds(VOCAB, {0, 7}).ids(48_000, np.random.default_rng(3))
    counts = np.bincount(ids, minlength=VOCAB)
    assert len(counts) == VOCAB
    assert counts[0] == counts[7] == 0
    assert counts[[i for i in range(VOCAB) if i not in (0, 7)]] == pytest.approx(np.full(48, 1000), rel=0.15)
    with pytest.raises(ConfigError):
        RandomIds(2, {0, 1})


def test_text_windows_go_round() -> None:
    text = [10, 11, 12, 13]
    starts = set()
    for seed in range(40):
        ids = TextIds(text).ids(6, np.random.default_rng(seed))
        start = text.index(ids[0])
        assert ids == tuple((text * 3)[start : start + 6])
        starts.add(start)
    assert starts == {0, 1, 2, 3}
    with pytest.raises(ConfigError):
        TextIds([])


def test_prompts_as_text() -> None:
    workload = Workload(
        RandomIds(VOCAB), drawn(Fixed(3), Fixed(1)), seed=1, spell=lambda ids: " ".join(map(str, ids))
    )
    request = workload.request(0)
    assert request.prompt_text == " ".join(map(str, request.prompt_ids))
