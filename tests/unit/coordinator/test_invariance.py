"""The promise inside one process: batching, chunking, pages and resuming change no bit of an answer.

Every comparison is of receipts, which cover the logits of the whole vocabulary, and exact.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest

from colibri.coordinator.engine import Engine, EngineOptions
from colibri.coordinator.request import GenerationRequest
from colibri.kernels.cpu.backend import supported_isas
from colibri.kernels.factory import make_backend
from tests.support.tiny_engine import Answer, TinyModel, ask, read

OPTIONS = EngineOptions(max_batch_rows=256, prefill_chunk=256, kv_page=16, kv_tokens=8192)
LENGTHS = (1, 3, 17, 64, 65, 90)


def requests(seed: int = 11) -> list[GenerationRequest]:
    """Prompts around page and tile sizes, greedy and sampled in turn."""
    rng = np.random.default_rng(seed)
    return [
        ask(
            rng.integers(0, 300, length).tolist(),
            10,
            temperature=0.9 * (at % 2),
            top_k=50,
            top_p=0.95,
            seed=at,
        )
        for at, length in enumerate(LENGTHS)
    ]


def mates(seed: int, count: int = 15) -> list[GenerationRequest]:
    rng = np.random.default_rng(seed)
    return [
        ask(rng.integers(0, 300, int(n)).tolist(), 12, temperature=0.5) for n in rng.integers(1, 80, count)
    ]


def alone(model: TinyModel, options: EngineOptions, asked: list[GenerationRequest]) -> list[Answer]:
    with model.engine(options) as engine:
        return [read(engine.submit(request)) for request in asked]


def crowd(engine: Engine, asked: list[GenerationRequest]) -> list[Answer]:
    handles = [engine.submit(request) for request in asked]
    return [read(handle) for handle in handles]


@pytest.fixture(scope="module")
def oracle(model: TinyModel) -> list[Answer]:
    """Each request alone, its prompt whole."""
    answers = alone(model, OPTIONS, requests())
    assert all(len(answer.receipts) == 10 for answer in answers)
    assert len({receipt for answer in answers for receipt in answer.receipts}) == 10 * len(answers)
    return answers


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prefill_in_chunks(model: TinyModel, oracle: list[Answer], chunk: int) -> None:
    assert _bits(alone(model, replace(OPTIONS, prefill_chunk=chunk), requests())) == _bits(oracle)


@pytest.mark.parametrize("page", [8, 32, 64])
def test_page_sizes(model: TinyModel, oracle: list[Answer], page: int) -> None:
    assert _bits(alone(model, replace(OPTIONS, kv_page=page), requests())) == _bits(oracle)


@pytest.mark.parametrize(("chunk", "rows"), [(256, 256), (7, 16), (64, 40), (1, 16)])
def test_among_fifteen_mates(model: TinyModel, oracle: list[Answer], chunk: int, rows: int) -> None:
    options = replace(OPTIONS, prefill_chunk=chunk, max_batch_rows=rows)
    with model.engine(options) as engine:
        for at, request in enumerate(requests()):
            others = mates(at)
            answers = crowd(engine, [*others[:7], request, *others[7:]])
            assert _bits([answers[7]]) == _bits([oracle[at]])


def test_all_at_once_from_many_threads(model: TinyModel, oracle: list[Answer]) -> None:
    """32 distinct requests in parallel, each equal to its answer alone."""
    several = [request for seed in range(11, 16) for request in requests(seed)]
    expected = alone(model, OPTIONS, several)
    found: dict[int, Answer] = {}
    with model.engine(replace(OPTIONS, max_queued=64, prefill_chunk=48)) as engine:

        def one(at: int) -> None:
            found[at] = read(engine.submit(several[at]))

        threads = [threading.Thread(target=one, args=(at,)) for at in range(len(several))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert _bits([found[at] for at in range(len(several))]) == _bits(expected)


@pytest.mark.parametrize("cut", [1, 5, 9])
def test_resume(model: TinyModel, oracle: list[Answer], cut: int) -> None:
    resumed = [
        replace(
            request,
            request_id=f"again-{at}",
            resumed_ids=np.array(oracle[at].ids[:cut], np.uint32),
            receipt=oracle[at].receipts[cut - 1],
        )
        for at, request in enumerate(requests())
    ]
    for options in (OPTIONS, replace(OPTIONS, prefill_chunk=5, kv_page=8)):
        for at, answer in enumerate(alone(model, options, resumed)):
            assert answer.ids == oracle[at].ids[cut:]
            assert answer.receipts == oracle[at].receipts[cut:]
            assert answer.finished == oracle[at].finished
            assert answer.finished is not None
            assert answer.finished.usage.completion_tokens == 10


def test_dirty_pages(model: TinyModel, oracle: list[Answer]) -> None:
    """What an earlier request left in the cache, NaN included, is never read."""
    with model.engine(OPTIONS) as engine:
        for view in engine.cache.views(
            *(np.zeros((1, 1), np.int32), np.zeros(1, np.int32), np.zeros(1, np.int32))
        ):
            for array in (view.k, view.v):
                array.fill(0x7FC0 if array.dtype == np.uint16 else np.nan)
        assert _bits([read(engine.submit(request)) for request in requests()]) == _bits(oracle)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", supported_isas())
def test_instruction_paths_and_threads(
    model: TinyModel, oracle: list[Answer], isa: str, threads: int
) -> None:
    backend = make_backend("cpu", isa=isa, threads=threads)
    other = TinyModel.open(model.checkpoint.folder, backend, model.mode)
    assert _bits(alone(other, replace(OPTIONS, prefill_chunk=33), requests())) == _bits(oracle)
    backend.close()


def _bits(answers: list[Answer]) -> list[tuple[list[int], list[int], str]]:
    return [(answer.ids, answer.receipts, answer.text) for answer in answers]
