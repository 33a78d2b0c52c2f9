"""The gate with a histogram of experts, and grouping by prefix sums."""

from __future__ import annotations

import numpy as np

from colibri.kernels.api import U32, Array, GateResult, PackedLinear
from colibri.kernels.checks.arrays import (
    check_array,
    check_below,
    check_format,
    check_rows_for,
    check_top_k,
)
from colibri.kernels.cuda.device import Buffer, Device
from colibri.kernels.cuda.plan import DTYPE_CODES, padded_rows
from colibri.kernels.cuda.rows import blocks, check_size
from colibri.kernels.cuda.weights import WeightCache

_ROWS, _WARPS, _GROUP_THREADS, _DIGITS = 16, 8, 512, 16


def gate(device: Device, weights: WeightCache, x: Array, weight: PackedLinear, k: int) -> GateResult:
    _check(x, weight, k)
    if not len(x):
        return _none(k)
    return _result(device, _launch(device, weights, x, weight, k), len(x), k)


def gate_and_group(
    device: Device, weights: WeightCache, x: Array, weight: PackedLinear, k: int
) -> tuple[GateResult, U32, U32]:
    _check(x, weight, k)
    if not len(x):
        return _none(k), np.zeros(weight.n + 1, dtype=np.uint32), np.zeros(0, dtype=np.uint32)
    gated = _launch(device, weights, x, weight, k)
    offsets, order = launch_group(device, gated[3], gated[4], len(x) * k, weight.n + 1)
    starts = device.download(offsets, (weight.n + 1,), np.uint32)
    return (
        _result(device, gated, len(x), k),
        starts,
        device.download(order, (len(x) * k,), np.uint32)[: starts[-1]],
    )


def group(device: Device, block: int, keys: U32, buckets: int) -> tuple[U32, U32]:
    check_array("keys", keys, np.uint32, ("n",))
    if not 0 <= buckets <= 2**24:
        raise ValueError(f"buckets: expected 0 .. 2^24, got {buckets}")
    check_below("keys", keys, buckets, "buckets")
    histogram = device.zeros(buckets * 4)
    on_device = device.upload(keys)
    if len(keys):
        device.launch(
            "count_keys", blocks(len(keys), block), block, 0, on_device, histogram, np.uint32(len(keys))
        )
    offsets, order = launch_group(device, on_device, histogram, len(keys), buckets)
    return (
        device.download(offsets, (buckets + 1,), np.uint32),
        device.download(order, (len(keys),), np.uint32),
    )


def _check(x: Array, weight: PackedLinear, k: int) -> None:
    check_format("weight", weight, quantised=False)
    check_rows_for(x, weight, wide=True)
    check_top_k(k, weight.n, "weight")
    check_size("weight", weight)


def _none(k: int) -> GateResult:
    return GateResult(
        np.zeros((0, k), dtype=np.uint16), np.zeros((0, k), dtype=np.float32), np.zeros(0, dtype=np.bool_)
    )


#: chosen, weights, bad, keys, histogram
Gated = tuple[Buffer, Buffer, Buffer, Buffer, Buffer]


def _launch(device: Device, weights: WeightCache, x: Array, weight: PackedLinear, k: int) -> Gated:
    padded = padded_rows(x)
    held = weights.use([weight.data])[0]
    bf16 = x.dtype == np.uint16
    return launch_gate(device, held, device.upload(padded), padded.shape[1], bf16, len(x), weight, k)


def launch_gate(
    device: Device, held: Buffer, x: Buffer, stride: int, bf16: bool, rows: int, weight: PackedLinear, k: int
) -> Gated:
    """Starts the gate.

    held: the weight on the device.
    x: [rows, stride], with zeros beyond weight.k.
    """
    experts = weight.n
    width = 8 if experts <= 8 else 16 if experts <= 16 else 32
    logits, bad = device.empty(rows * experts * 4), device.zeros(rows * 4)
    device.launch(
        "gate_logits",
        blocks(rows, _ROWS) * blocks(experts, width),
        32 * _WARPS,
        _WARPS * 32 * _ROWS * 4,
        x,
        np.uint32(stride),
        np.int32(bf16),
        held,
        logits,
        bad,
        np.uint32(rows),
        np.uint32(weight.k),
        np.uint32(experts),
        np.uint32(width),
        np.int32(DTYPE_CODES[weight.dtype]),
    )
    chosen, scores = device.empty(rows * k * 2), device.empty(rows * k * 4)
    keys, histogram = device.empty(rows * k * 4), device.zeros((experts + 1) * 4)
    device.launch(
        "gate_top_k",
        blocks(rows, 4),
        128,
        0,
        logits,
        bad,
        chosen,
        scores,
        keys,
        histogram,
        np.uint32(rows),
        np.uint32(experts),
        np.uint32(k),
    )
    return chosen, scores, bad, keys, histogram


def _result(device: Device, gated: Gated, rows: int, k: int) -> GateResult:
    chosen, scores, bad, _, _ = gated
    return GateResult(
        device.download(chosen, (rows, k), np.uint16),
        device.download(scores, (rows, k), np.float32),
        device.download(bad, (rows,), np.uint32) == 0,
    )


def launch_group(
    device: Device, keys: Buffer, histogram: Buffer, count: int, buckets: int
) -> tuple[Buffer, Buffer]:
    """Returns offsets [buckets + 1] and order [count] of keys whose histogram is known."""
    offsets, order = device.empty((buckets + 1) * 4), device.empty(count * 4)
    device.launch(
        "group_keys",
        1,
        _GROUP_THREADS,
        (32 + _DIGITS * _GROUP_THREADS) * 4,
        keys,
        histogram,
        offsets,
        order,
        device.empty(count * 4),
        np.uint32(count),
        np.uint32(buckets),
    )
    return offsets, order
