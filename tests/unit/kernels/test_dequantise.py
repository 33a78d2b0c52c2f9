"""Packed int4 to packed bf16 on the CPU: the very bytes of the reference's dequantised weights, whatever the part."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.kernels.api import ComputeMode
from colibri.kernels.cpu.backend import CpuBackend
from colibri.kernels.reference import ReferenceBackend
from colibri.kernels.reference.floats import to_bf16
from colibri.kernels.reference.quantised import dequantize_linear


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_it_is_the_references(threads: int, group: int) -> None:
    rng = np.random.default_rng()
    backend = CpuBackend(threads)
    for n in (1, 31, 33, 64):
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
            live = int(rng.integers(0, k + 1))
            values[:, live:] = 0
            backend.dequantize_pairs(packed.data, n, k, group, live, 0, out)
            assert out.tobytes() == ReferenceBackend().pack_linear(values, ComputeMode.BF16).data.tobytes()
    backend.close()


def test_every_number_and_odd_scales() -> None:
    """All 16 numbers by scales of every kind: the smallest normal, subnormal ones, -0, Inf and NaN."""
    backend = CpuBackend()
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
