"""Packed int4 to packed bf16 on the CPU: the very bytes of the reference's dequantised weights, whatever the part."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.kernels.api import ComputeMode
from colibri.kernels.arithmetic.floats import to_bf16
from colibri.kernels.cpu.backend import CpuBackend, supported_isas
from colibri.kernels.layout.aligned import aligned_bytes
from colibri.kernels.reference import ReferenceBackend
from colibri.kernels.reference.quantised import dequantize_linear

ISAS = tuple(supported_isas())
# What `out` must be as large as to be written past the caches.
STREAM_BYTES = 4 << 20


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("group", [32, 64, 128])
def test_it_is_the_references(isa: str, group: int) -> None:
    rng = np.random.default_rng()
    backend = CpuBackend(2, isa=isa)
    for n in (1, 2, 15, 16, 17, 31, 33, 64):
        for k in (1, 2, 15, 16, 17, 31, 33, 130, 515):
            w = rng.standard_normal((n, k)).astype(np.float32) * np.float32(10.0 ** rng.integers(-38, 3))
            packed = backend.quantize_linear(w, "int4", group)
            values = to_bf16(dequantize_linear(packed))
            right = ReferenceBackend().pack_linear(values, ComputeMode.BF16).data
            out = np.full(right.nbytes, 0xAA, dtype=np.uint8)
            backend.dequantize_pairs(packed.data, n, k, group, k, 0, out)
            assert out.tobytes() == right.tobytes(), (n, k)
            first, last = sorted(int(at) for at in rng.integers(0, right.nbytes // 128 + 1, 2))
            part = np.full((last - first) * 128, 0xAA, dtype=np.uint8)
            backend.dequantize_pairs(packed.data, n, k, group, k, first, part)
            assert part.tobytes() == right[first * 128 : last * 128].tobytes(), (n, k, first, last)
            for live in (int(rng.integers(0, k + 1)), 0):
                values[:, live:] = 0
                backend.dequantize_pairs(packed.data, n, k, group, live, 0, out)
                right = ReferenceBackend().pack_linear(values, ComputeMode.BF16).data
                assert out.tobytes() == right.tobytes(), (n, k, live)
    backend.close()


@pytest.mark.parametrize("k", [4096, 4095, 4090])
def test_every_path_and_way_of_writing_gives_the_same_bytes(k: int) -> None:
    """What is written past the caches, by one thread and by two, and what is not: too small or off its boundary."""
    rng = np.random.default_rng()
    n, group, live = 1050, 64, k - 11
    panels, pairs = -(-n // 32), -(-k // 2)
    data = rng.integers(0, 256, panels * (-(-k // group) * 64 + -(-k // 8) * 128), dtype=np.uint8)
    nbytes = panels * pairs * 128
    assert nbytes >= 2 * STREAM_BYTES
    memory = aligned_bytes(nbytes + 128)
    oracle = CpuBackend(isa="portable")
    right = np.empty(nbytes, dtype=np.uint8)
    for first in range(0, panels * pairs, 4000):
        part = right[first * 128 : (first + 4000) * 128]
        oracle.dequantize_pairs(data, n, k, group, live, first, part)
    oracle.close()
    for isa in ISAS:
        for threads in (1, 2):
            backend = CpuBackend(threads, isa=isa)
            for offset in (0, 1, 32, 64):
                memory[:] = 0xAA
                backend.dequantize_pairs(data, n, k, group, live, 0, memory[offset : offset + nbytes])
                assert memory[offset : offset + nbytes].tobytes() == right.tobytes(), (isa, threads, offset)
                around = np.delete(memory, slice(offset, offset + nbytes))
                assert (around == 0xAA).all(), (isa, threads, offset)
            first = 3
            out = memory[: nbytes - 128 * 5]
            backend.dequantize_pairs(data, n, k, group, live, first, out)
            assert out.tobytes() == right[first * 128 : first * 128 + len(out)].tobytes(), (isa, threads)
            backend.close()


def test_nothing_is_nothing() -> None:
    backend = CpuBackend()
    packed = backend.quantize_linear(np.ones((32, 40), dtype=np.float32), "int4", 32)
    for first in (0, 20):  # 20: behind the last pair
        backend.dequantize_pairs(packed.data, 32, 40, 32, 40, first, np.empty(0, dtype=np.uint8))
    backend.close()


@pytest.mark.parametrize("isa", ISAS)
def test_every_number_and_odd_scales(isa: str) -> None:
    """All 16 numbers by scales of every kind: the smallest normal, subnormal ones, -0, Inf and NaN."""
    backend = CpuBackend(isa=isa)
    w = np.tile(np.arange(-8, 8, dtype=np.float32), (32, 2))
    packed = backend.quantize_linear(w, "int4", 32)
    scales = np.array(
        [0x0080, 0x8080, 0x0001, 0x807F, 0x8000, 0x7F80, 0x7FC0, 0x7F7F, 0x3FFF, 0xBF81] * 4, dtype=np.uint16
    )
    packed.data[:64] = scales[:32].view(np.uint8)
    with np.errstate(all="ignore"):
        values = to_bf16(dequantize_linear(packed))
    out = np.empty(32 * 32 * 2, dtype=np.uint8)
    backend.dequantize_pairs(packed.data, 32, 32, 32, 32, 0, out)
    found = out.view(np.uint16).reshape(16, 32, 2).transpose(1, 0, 2).reshape(32, 32)
    nan = (values & 0x7FFF) > 0x7F80
    assert np.array_equal((found & 0x7FFF) > 0x7F80, nan)
    assert np.array_equal(np.where(nan, 0, found), np.where(nan, 0, values))
    backend.close()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n": 0}, "n: expected 1 to 2"),
        ({"group": 48}, "group: expected 32, 64 or 128, got 48"),
        ({"live": 41}, "live: expected 0 to 40, got 41"),
        ({"first": 20}, "first: expected 0 to 19, with pairs left to fill out, got 20"),
        ({"first": -1}, "first: expected 0 to 19"),
        ({"k": 1 << 32}, "k: expected 1 to 2.*, got 4294967296"),
        ({"k": 48}, "data: expected"),
        ({"out": np.zeros(130, dtype=np.uint8)}, "out: expected a multiple of 128 bytes, got 130"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, object], text: str) -> None:
    backend = CpuBackend()
    packed = backend.quantize_linear(np.ones((32, 40), dtype=np.float32), "int4", 32)
    arguments = {"n": 32, "k": 40, "group": 32, "live": 40, "first": 0, "out": np.zeros(128, dtype=np.uint8)}
    with pytest.raises(ValueError, match=text):
        backend.dequantize_pairs(packed.data, **{**arguments, **change})  # type: ignore[arg-type]
    backend.close()
