"""Several choices of one request: one prompt computed, full pages shared, each answer as it is alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from colibri.coordinator.engine import EngineOptions
from colibri.coordinator.kv_cache import KvCache, KvShape
from colibri.coordinator.request import GenerationRequest
from colibri.errors import InvalidInput, WorkerLost
from colibri.generation import FinishReason
from colibri.kernels.api import ComputeMode
from tests.support.tiny_engine import TinyModel, Turnstile, ask, idle, read, read_all, wait_for

OPTIONS = EngineOptions(max_batch_rows=64, prefill_chunk=16, kv_page=8, kv_tokens=1024, max_running=8)


def choice(request: GenerationRequest, index: int) -> GenerationRequest:
    """One of its choices, asked for alone."""
    sampling = replace(request.sampling, choice=index)
    return replace(request, request_id=f"{request.request_id}-{index}", n=1, sampling=sampling)


@pytest.mark.parametrize("prompt_tokens", [1, 7, 8, 9, 16, 40])
def test_each_choice_is_what_it_is_alone(model: TinyModel, prompt_tokens: int) -> None:
    """At page boundaries and between them."""
    prompt = (np.arange(prompt_tokens) * 7 % 290 + 3).tolist()
    request = ask(prompt, 12, temperature=1.5, n=4)
    with model.engine(OPTIONS) as engine:
        alone = [read(engine.submit(choice(request, index))) for index in range(4)]
        other = engine.submit(ask([5, 6], 20, temperature=1.0))
        together = read_all(engine.submit(request))
        read(other)
        assert idle(engine)
    assert [(a.ids, a.receipts, a.text) for a in together] == [(a.ids, a.receipts, a.text) for a in alone]
    assert [a.end for a in together] == [a.end for a in alone]
    assert [a.end.choice for a in together] == [0, 1, 2, 3]
    assert len({tuple(a.ids) for a in together}) == 4


def test_the_prompt_is_computed_once(model: TinyModel) -> None:
    with model.engine(OPTIONS) as engine:
        read_all(engine.submit(ask([4] * 40, 5, temperature=1.0, n=3)))
        stats = engine.stats()
    assert (stats.prefill_rows, stats.decode_rows, stats.sampled) == (40, 12, 15)
    assert (stats.finished, stats.kv_pages_used) == (1, 0)


def test_full_pages_of_the_prompt_are_shared(model: TinyModel) -> None:
    """44 positions are 6 pages, of which the prompt fills 5: one more for each further choice."""
    turnstile = Turnstile(model.router)
    with model.engine(OPTIONS, turnstile) as engine:
        handle = engine.submit(ask([4] * 40, 4, n=3))
        turnstile.wait_step()
        assert engine.stats().kv_pages_used == 6 + 1 + 1
        assert engine.stats().running == 3
        turnstile.open()
        read_all(handle)
        assert idle(engine)


def test_choices_end_one_by_one(model: TinyModel) -> None:
    request = ask([9, 8, 7], 30, temperature=2.0, n=4)
    with model.engine(OPTIONS) as engine:
        free = [read(engine.submit(choice(request, index))) for index in range(4)]
        stops = [answer.ids[4 + 5 * at] for at, answer in enumerate(free)]
        ends = [min(a.ids.index(s) for s in stops if s in a.ids) for a in free]
        found = read_all(engine.submit(replace(request, stop_ids=frozenset(stops))))
        assert idle(engine)
    assert [a.ids for a in found] == [a.ids[: end + 1] for a, end in zip(free, ends, strict=True)]
    assert {a.end.reason for a in found} == {FinishReason.STOP}


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_a_leader_that_ends_at_once(model: TinyModel, max_tokens: int) -> None:
    request = ask([9] * 13, max_tokens, temperature=2.0, n=5)
    with model.engine(OPTIONS) as engine:
        alone = [read(engine.submit(choice(request, index))).receipts for index in range(5)]
        assert [a.receipts for a in read_all(engine.submit(request))] == alone
        leader_stops = replace(request, stop_ids=frozenset(read(engine.submit(choice(request, 0))).ids[:1]))
        assert len(read_all(engine.submit(leader_stops))) == 5
        assert idle(engine)


def test_abort_ends_all_that_run(model: TinyModel) -> None:
    turnstile = Turnstile(model.router)
    with model.engine(OPTIONS, turnstile) as engine:
        handle = engine.submit(ask([1, 2], 30, request_id="all", n=3))
        turnstile.let(3)
        for _ in range(4):
            turnstile.wait_step()
        assert engine.abort("all")
        turnstile.open()
        answers = read_all(handle)
        assert [a.end.reason for a in answers] == [FinishReason.ABORT] * 3
        assert [len(a.ids) for a in answers] == [4] * 3
        assert idle(engine)
        assert engine.stats().aborted == 1


def test_abort_while_the_prompt_is_computed(model: TinyModel) -> None:
    turnstile = Turnstile(model.router)
    with model.engine(OPTIONS, turnstile) as engine:
        handle = engine.submit(ask([1] * 40, 30, n=3))
        turnstile.wait_step()
        handle.cancel()
        turnstile.open()
        answers = read_all(handle)
        assert [(a.end.reason, a.end.usage.completion_tokens) for a in answers] == [
            (FinishReason.ABORT, 0)
        ] * 3
        assert idle(engine)


def test_an_error_ends_all(model: TinyModel) -> None:
    turnstile = Turnstile(model.router)
    with model.engine(OPTIONS, turnstile) as engine:
        handle = engine.submit(ask([1] * 5, 30, n=3))
        turnstile.let()
        turnstile.wait_step()
        turnstile.wait_step()
        turnstile.error = WorkerLost("worker w1 is gone", peer="w1")
        turnstile.open()
        with pytest.raises(WorkerLost, match="w1"):
            read_all(handle)
        wait_for("the pages", lambda: idle(engine))
        assert engine.stats().failed == 1


def test_a_request_waits_for_places_for_all_its_choices(model: TinyModel) -> None:
    turnstile = Turnstile(model.router)
    with model.engine(replace(OPTIONS, max_running=4), turnstile) as engine:
        first = engine.submit(ask([1], 3, n=3))
        second = engine.submit(ask([1], 3, n=2))
        turnstile.wait_step()
        assert (engine.stats().running, engine.stats().waiting) == (3, 1)
        turnstile.open()
        assert len(read_all(first)) == 3
        assert len(read_all(second)) == 2


def test_more_than_can_ever_run_is_refused(model: TinyModel) -> None:
    with model.engine(replace(OPTIONS, max_running=2, kv_tokens=64)) as engine:
        with pytest.raises(InvalidInput, match=r"n: expected 1 to 2 \(answers computed at once\), got 3"):
            engine.submit(ask([1], 2, n=3))
        with pytest.raises(
            InvalidInput, match=r"n: expected choices .* cache of 64 positions, got 2 choices of 41"
        ):
            engine.submit(ask([1], 40, n=2))
        assert len(read_all(engine.submit(ask([1] * 30, 10, n=2)))) == 2


def test_pages_are_shared_and_given_back_once() -> None:
    cache = KvCache(KvShape(2, 1, 2, 8, 80), ComputeMode.FP32)
    pages = cache.reserve(30, prompt=17, choices=3)  # 4 pages each, 2 shared
    assert pages is not None
    assert [len(each) for each in pages] == [4, 4, 4]
    assert {tuple(each[:2]) for each in pages} == {tuple(pages[0][:2])}
    own = [page for each in pages for page in each[2:].tolist()]
    assert len(set(own)) == 6
    assert cache.pages.free == 2
    assert cache.reserve(30, prompt=17, choices=1) is None
    for number, each in enumerate(pages):
        cache.release(each)
        assert cache.pages.free == (4, 6, 10)[number]
    with pytest.raises(ValueError, match="pages that are taken"):
        cache.pages.share([0])
