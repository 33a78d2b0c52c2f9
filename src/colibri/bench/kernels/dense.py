"""The dense part: projections and head, norm, RoPE, attention, embedding, and what joins expert results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from colibri.bench.kernels.timing import Case
from colibri.bench.kernels.weights import Format, blocks, copies, matrix, random_rows, raw
from colibri.kernels.api import Array, ComputeMode, KvView, PackedLinear, SamplingParams
from colibri.kernels.cpu.backend import CpuBackend

PAGE = 16
_HEADS, _KV_HEADS, _HEAD_DIM = 16, 8, 128


def linear(
    backend: CpuBackend, shapes: Sequence[tuple[int, int]], kinds: Sequence[Format], rows: Sequence[int],
    rotate: int, kernel: str = "linear",
) -> Iterator[list[Case]]:  # fmt: skip
    """shapes: [n, k]. One list for each shape and format."""
    for n, k in shapes:
        for kind in kinds:
            matrices = copies(matrix(backend, n, k, kind), rotate)
            found = []
            for count in rows:
                x = random_rows((count, k), kind.rows, 2)
                run = partial(_product, backend, x, matrices)
                shape, work = f"{n}x{k}", 2.0 * count * n * k
                peak = kind.peak(backend.isa)
                found.append(Case(kernel, shape, kind.name, count, run, blocks(matrices), work, peak))
            yield found


def _product(backend: CpuBackend, x: Array, matrices: Sequence[PackedLinear], turn: int) -> None:
    backend.linear(x, matrices[turn % len(matrices)])


def attention(
    backend: CpuBackend, steps: Sequence[tuple[int, int]], mode: ComputeMode, rotate: int
) -> Iterator[list[Case]]:
    """steps: (rows, positions before them). Grouped-query, 16 heads on 8, 128 wide; one list for each step."""
    for rows, past in steps:
        pages = -(-(past + rows) // PAGE)
        table = np.random.default_rng(1).permutation(pages).astype(np.int32)[None]
        positions = np.arange(past, past + rows, dtype=np.int32)
        q = random_rows((rows, _HEADS * _HEAD_DIM), "fp32", 5)
        first = random_rows((pages, _KV_HEADS, PAGE, _HEAD_DIM), mode.value, 6)
        count = min(max(2, -(-rotate // (2 * first.nbytes))), 64)
        views = [
            KvView(first.copy(), first.copy(), table, np.zeros(rows, np.int32), positions)
            for _ in range(count)
        ]
        keys = sum(past + row + 1 for row in range(rows))
        yield [
            Case(
                "attention",
                f"{_HEADS}/{_KV_HEADS}/{_HEAD_DIM} past {past}",
                mode.value,
                rows,
                partial(_attend, backend, q, views, mode),
                [raw(view.k, view.v) for view in views],
                4.0 * keys * _HEADS * _HEAD_DIM,
                "fp32",
            )
        ]


def _attend(backend: CpuBackend, q: Array, views: Sequence[KvView], mode: ComputeMode, turn: int) -> None:
    backend.attention(q, views[turn % len(views)], None, mode)


def small(backend: CpuBackend, hidden: int, rows: Sequence[int], mode: ComputeMode) -> Iterator[list[Case]]:
    """Norm, RoPE, embedding, grouping, merge: mostly in cache, as in a step. One list."""
    found = []
    weight = random_rows((hidden,), "fp32", 1)
    vocabulary = backend.pack_linear(random_rows((4096, hidden), mode.value, 2), ComputeMode.FP32)
    rope = backend.rope_table(1e6, _HEAD_DIM, max(rows))
    rng = np.random.default_rng(3)
    for count in rows:
        x = random_rows((count, hidden), "fp32", 4)
        ids = rng.integers(0, 4096, count).astype(np.uint32)
        keys = rng.integers(0, 8, 2 * count).astype(np.uint32)
        parts = [random_rows((count, hidden), "fp32", seed) for seed in (5, 6)]
        term = np.repeat(np.arange(count, dtype=np.uint32), 2)
        part = np.tile(np.arange(2, dtype=np.uint32), count)
        offsets = np.arange(0, 2 * count + 1, 2, dtype=np.uint32)
        qkv = random_rows((count, (_HEADS + 2 * _KV_HEADS) * _HEAD_DIM), "fp32", 7)
        pages = -(-count // PAGE)
        cache = random_rows((pages, _KV_HEADS, PAGE, _HEAD_DIM), mode.value, 8)
        table = np.arange(pages, dtype=np.int32)[None]
        kv = KvView(cache, cache.copy(), table, np.zeros(count, np.int32), np.arange(count, dtype=np.int32))
        calls: dict[str, tuple[Callable[[], object], list[Array]]] = {
            "norm": (partial(backend.rms_norm, x, weight, 1e-5, mode), [x]),
            "rope": (partial(backend.rope_and_store, qkv, rope, kv, _HEADS), [qkv]),
            "embed": (partial(backend.embed, vocabulary, ids), []),
            "group": (partial(backend.group, keys, 8), [keys]),
            "merge": (partial(backend.merge, parts, part, term, offsets), parts),
        }
        for kernel, (call, read) in calls.items():
            found.append(
                Case(
                    kernel, str(hidden), mode.value, count, partial(_ignore_turn, call), [raw(*read)], 0.0, ""
                )
            )
    yield found


def sampling(backend: CpuBackend, vocab: int) -> Iterator[list[Case]]:
    logits = random_rows((vocab,), "fp32", 9) * np.float32(3 * vocab**0.5)
    options = {
        "greedy": SamplingParams(),
        "temperature": SamplingParams(1.0),
        "top-k 50": SamplingParams(1.0, 50),
        "top-p 0.9": SamplingParams(1.0, 0, 0.9),
    }
    yield [
        Case(
            "sampling",
            f"{vocab} {name}",
            "fp32",
            1,
            partial(_ignore_turn, partial(backend.sample, logits, params, 5)),
            [raw(logits)],
            0.0,
            "",
        )
        for name, params in options.items()
    ]


def _ignore_turn(call: Callable[[], object], turn: int) -> None:
    call()
