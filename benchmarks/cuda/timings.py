"""Timings on a GPU: ceilings of the same run, then the FFN of Mixtral-8x7B, gate and grouping, pinned copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.cuda import int4_timing
from colibri.kernels.api import U32, ComputeMode, PackedExpert
from colibri.kernels.cuda import routing
from colibri.kernels.cuda.cupy_device import CupyDevice
from colibri.kernels.cuda.device import Buffer
from colibri.kernels.cuda.products import grouped, pointers
from colibri.kernels.cuda.staging import StagingRing
from colibri.kernels.cuda.weights import WeightCache
from colibri.kernels.layout.packing import gate_up_bytes, packed_expert_bytes
from colibri.kernels.reference import ReferenceBackend
from tests.conformance.kernels.support import bf16

if TYPE_CHECKING:
    from benchmarks.cuda.gpu_check import Results

HIDDEN, FFN, EXPERTS, TOP_K = 4096, 14336, 8, 2
ROWS = (1, 8, 64, 512, 4096)
_BIG = 1 << 30
_RING = 256 << 20


def full(index: int, results: Results, limit_s: float) -> None:
    """One line for each timing; what fails or finds no time is a line, too."""
    begin = time.monotonic()
    device = CupyDevice(index, memory_bytes=None, pinned_bytes=2 * _RING + _BIG, cache=None)

    def attempt(name: str, measure: Callable[[], tuple[str, dict[str, Any]]]) -> dict[str, Any]:
        if time.monotonic() - begin > limit_s:
            results.add(name, None, "left out: no time")
            return {}
        try:
            value, detail = measure()
        except Exception as error:  # no torch, no memory, a failed launch: the next line follows
            results.add(name, None, f"not measured: {type(error).__name__}: {error}"[:300])
            return {}
        results.add(name, None, value, **detail)
        return detail

    bandwidth = attempt("copy on the device", lambda: _copy(device)).get("bytes_per_s", 0.0)
    peak = attempt("torch.matmul, bf16, 8192 cubed", _matmul).get("flops_per_s", 0.0)
    plain = attempt("plain pinned copy to the device", lambda: _pinned(device)).get("bytes_per_s", 0.0)
    attempt("weights through the ring", lambda: _ring(device, plain))
    attempt("gate and grouping, 4096 rows", lambda: _routing(device))
    for dtype in ("bf16", "int8", "int4"):
        weights = [random_expert(dtype, number) for number in range(EXPERTS)]
        buffers = [device.upload(expert.data) for expert in weights]
        for rows in ROWS:
            attempt(
                f"FFN {dtype}, {rows} rows",
                partial(_ffn, device, dtype, weights[0], buffers, rows, bandwidth, peak),
            )
    for name, measure in int4_timing.lines(device, random_expert("int4", 0), _RING).items():
        attempt(name, measure)
    for rows in ROWS:
        attempt(f"torch FFN, bf16, {rows} rows", partial(_torch_ffn, rows))
    for rows in ROWS:
        attempt(f"Triton FFN, bf16, {rows} rows", partial(_triton_ffn, rows))
    device.close()


def _copy(device: CupyDevice) -> tuple[str, dict[str, Any]]:
    source, target = device.empty(_BIG), device.empty(_BIG)
    seconds = device.time(lambda: device.copy(target, source), 10)
    rate = 2 * _BIG / seconds
    return f"{rate / 1e9:.0f} GB/s read and written", {"bytes_per_s": rate}


def _matmul() -> tuple[str, dict[str, Any]]:
    import torch

    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    seconds = _torch_time(lambda: a @ b, 10)
    rate = 2 * 8192**3 / seconds
    return f"{rate / 1e12:.0f} TFLOP/s", {"flops_per_s": rate}


def _pinned(device: CupyDevice) -> tuple[str, dict[str, Any]]:
    source, target = device.pinned(_BIG), device.empty(_BIG)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        device.copy_beside(target, 0, source, None).wait()
        seconds.append(time.perf_counter() - start)
    rate = _BIG / min(seconds)
    return f"{rate / 1e9:.1f} GB/s", {"bytes_per_s": rate}


def _ring(device: CupyDevice, plain: float) -> tuple[str, dict[str, Any]]:
    ring = StagingRing(device, _RING)
    source, target = np.ones(_BIG, dtype=np.uint8), device.empty(_BIG)
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        event = ring.copy(target, source, None)
        if event is not None:
            event.wait()
        seconds.append(time.perf_counter() - start)
    rate = _BIG / min(seconds)
    return f"{rate / 1e9:.1f} GB/s, {_part(rate, plain)} of a plain one", {"bytes_per_s": rate}


def _routing(device: CupyDevice) -> tuple[str, dict[str, Any]]:
    rng = np.random.default_rng(0)
    weight = ReferenceBackend().pack_linear(bf16(rng.standard_normal((EXPERTS, HIDDEN))), ComputeMode.BF16)
    x = device.upload(bf16(rng.standard_normal((4096, HIDDEN))))
    cache = WeightCache(device, 1 << 24, 1 << 20)
    held = cache.use([weight.data])[0]

    def run() -> None:
        gated = routing.launch_gate(device, held, x, HIDDEN, True, 4096, weight, TOP_K)
        routing.launch_group(device, gated[3], gated[4], 4096 * TOP_K, EXPERTS + 1)

    seconds = device.time(run, 50)
    return f"{seconds * 1e6:.0f} us", {"seconds": seconds}


def _ffn(
    device: CupyDevice,
    dtype: str,
    expert: PackedExpert,
    buffers: list[Buffer],
    rows: int,
    bandwidth: float,
    peak: float,
) -> tuple[str, dict[str, Any]]:
    """All experts that `rows` rows choose, top 2 of 8, spread evenly."""
    rng = np.random.default_rng(rows)
    entries = rows * TOP_K
    used = min(EXPERTS, entries)
    counts: U32 = np.full(used, entries // used, dtype=np.uint32)
    counts[: entries % used] += 1
    x = device.upload(bf16(rng.standard_normal((rows, HIDDEN))))
    entry_row = device.upload(rng.integers(0, rows, entries).astype(np.uint32))
    entry_weight = device.upload(np.ones(entries, dtype=np.float32))
    experts = pointers(device, buffers[:used])
    out = device.empty(entries * HIDDEN * 4)
    down = gate_up_bytes(dtype, HIDDEN, FFN, expert.group)[1]

    def run() -> None:
        grouped(
            device,
            dtype,
            counts,
            x,
            stride=HIDDEN,
            entry_row=entry_row,
            entry_weight=entry_weight,
            experts=experts,
            out=out,
            hidden=HIDDEN,
            ffn=FFN,
            down_offset=down,
            group=expert.group,
        )

    seconds = device.time(run, 20 if rows <= 64 else 5)
    nbytes, flops = used * expert.data.nbytes, entries * 6 * HIDDEN * FFN
    detail = {"seconds": seconds, "bytes_per_s": nbytes / seconds, "flops_per_s": flops / seconds}
    return (
        f"{seconds * 1e6:.0f} us, {nbytes / seconds / 1e9:.0f} GB/s of weights ({_part(nbytes / seconds, bandwidth)} "
        f"of copy), {flops / seconds / 1e12:.1f} TFLOP/s ({_part(flops / seconds, peak)} of matmul)",
        detail,
    )


def _torch_ffn(rows: int) -> tuple[str, dict[str, Any]]:
    import torch
    from torch.nn.functional import silu

    def matrix(*shape: int) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) / 64

    experts = [(matrix(FFN, HIDDEN), matrix(FFN, HIDDEN), matrix(HIDDEN, FFN)) for _ in range(EXPERTS)]
    entries = rows * TOP_K
    used = min(EXPERTS, entries)
    parts = [matrix(entries // used + (number < entries % used), HIDDEN) for number in range(used)]

    def run() -> None:
        for x, (gate, up, down) in zip(parts, experts, strict=False):
            (silu(x @ gate.T) * (x @ up.T)) @ down.T

    seconds = _torch_time(run, 10)
    return f"{seconds * 1e6:.0f} us", {"seconds": seconds}


def _triton_ffn(rows: int) -> tuple[str, dict[str, Any]]:
    """A grouped FFN in Triton on the same shapes, timed only once it is right."""
    from benchmarks.cuda.triton_timing import prepare

    entries = rows * TOP_K
    used = min(EXPERTS, entries)
    counts = [entries // used + (number < entries % used) for number in range(used)]
    run, check = prepare(counts, HIDDEN, FFN, "cuda", rows)
    check()
    seconds = _torch_time(run, 10)
    return f"{seconds * 1e6:.0f} us, {entries * 6 * HIDDEN * FFN / seconds / 1e12:.1f} TFLOP/s", {
        "seconds": seconds
    }


def _torch_time(run: Callable[[], object], rounds: int) -> float:
    import torch

    for _ in range(2):
        run()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(rounds):
        run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / rounds


def random_expert(dtype: str, seed: int) -> PackedExpert:
    """Full size; every panel of 32 columns holds the same numbers, since packing 8 of them would take minutes."""
    rng = np.random.default_rng(seed)
    reference = ReferenceBackend()
    group = 0 if dtype == "bf16" else 64
    data = np.empty(packed_expert_bytes(dtype, HIDDEN, FFN, group), dtype=np.uint8)
    size, start = gate_up_bytes(dtype, HIDDEN, FFN, group)
    for part, k in ((data[:size], HIDDEN), (data[start:], FFN)):
        w = bf16(rng.standard_normal((32, k)) / np.sqrt(k))
        panel = (
            reference.pack_linear(w, ComputeMode.BF16)
            if dtype == "bf16"
            else reference.quantize_linear(w, dtype, group)
        )
        part.reshape(-1, panel.data.nbytes)[:] = panel.data
    return PackedExpert(dtype, HIDDEN, FFN, data, group)


def _part(value: float, of: float) -> str:
    return f"{value / of:.0%}" if of else "?"
