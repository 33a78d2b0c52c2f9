"""A quick check of each module's kernels on an emulated device, under every schedule.

Mutants of the sources must fail it, AddressSanitizer must find nothing in it. Run as a program it takes a module's name
and its library."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from colibri.kernels.api import Backend, ComputeMode, PackedExpert, SamplingParams
from colibri.kernels.cpu.backend import CpuBackend
from colibri.kernels.cuda.backend import CudaBackend
from colibri.kernels.cuda.device import DeviceError
from colibri.kernels.cuda.sources import module_of
from colibri.kernels.reference import ReferenceBackend
from tests.conformance.kernels.quantised_support import read, read_expert, values
from tests.conformance.kernels.support import (
    as_float64,
    assert_same,
    bf16,
    paged_cache,
    rows_of,
    silu,
    stored,
    unit_batch,
)

from .build import Library, library_of
from .emulated import EmulatedDevice

Array = NDArray[Any]
SCHEDULES = (0, 1, 2, 3)
#: Largest error of a tensor product relative to its largest value, where weights are what they are.
_TENSOR_BOUND = 2e-6
#: With h rounded to bf16: a few of its steps.
_EXPERT_BOUND = 5e-3


@dataclass(frozen=True, slots=True)
class Probe:
    """cuda: what is probed; cpu: the oracle."""

    cuda: CudaBackend
    cpu: Backend
    rng: np.random.Generator

    def rows(self) -> None:
        rng = self.rng
        parts = [rng.standard_normal((n, 37)).astype(np.float32) for n in (5, 9)]
        part = rng.integers(0, 2, 20).astype(np.uint32)
        index = rng.integers(0, 5, 20).astype(np.uint32)
        offsets = np.array([0, 3, 3, 9, 20], dtype=np.uint32)
        arguments = (parts, part, index, offsets)
        assert_same(self.cuda.merge(*arguments), self.cpu.merge(*arguments))
        sums = [parts[1].copy(), parts[1].copy()]
        for backend, total in zip((self.cuda, self.cpu), sums, strict=True):
            backend.add_inplace(total, rng.permuted(parts[1], axis=None) * 0 + parts[1])
        assert_same(sums[0], sums[1])
        weight = rng.standard_normal(37).astype(np.float32)
        for mode in ComputeMode:
            norms = [b.rms_norm(parts[1], weight, 1e-5, mode) for b in (self.cuda, self.cpu)]
            assert_same(norms[0], norms[1])
        ids = rng.integers(0, 40, 7).astype(np.uint32)
        for dtype in ("int8", "int4"):
            table = self.cpu.quantize_linear(stored(rng.standard_normal((40, 100)), "fp32"), dtype, 32)
            assert_same(self.cuda.embed(table, ids), self.cpu.embed(table, ids))
        table = self.cpu.pack_linear(stored(rng.standard_normal((40, 33)), "bf16"), ComputeMode.BF16)
        assert_same(self.cuda.embed(table, ids), self.cpu.embed(table, ids))
        self._attention(rope=True)

    def attention(self) -> None:
        self._attention(rope=False)

    def _attention(self, *, rope: bool) -> None:
        rng = self.rng
        for dtype, mode in (("fp32", ComputeMode.FP32), ("bf16", ComputeMode.BF16)):
            k, v = ([stored(rng.standard_normal((2, 140, 20)), dtype)] for _ in range(2))
            seed = int(rng.integers(1 << 30))
            outputs = []
            qkv = rng.standard_normal((9, (6 + 4) * 20)).astype(np.float32)
            qkv[4, -3] = np.inf
            q = rng.standard_normal((9, 6 * 20)).astype(np.float32)
            for backend in (self.cuda, self.cpu):
                cache = paged_cache(
                    np.random.default_rng(seed),
                    lengths=[140],
                    kv_heads=2,
                    head_dim=20,
                    page=16,
                    dtype=dtype,
                    k=k,
                    v=v,
                )
                view = rows_of(cache, [0] * 9, [0, 63, 64, 65, 127, 128, 137, 138, 139])
                if rope:
                    table = backend.rope_table(1e4, 20, 150)
                    outputs.append([backend.rope_and_store(qkv, table, view, 6), cache.k, cache.v])
                else:
                    outputs.append([backend.attention(q, view, window, mode) for window in (None, 70)])
            for got, expected in zip(*outputs, strict=True):
                assert_same(got, expected)

    def plain(self) -> None:
        rng = self.rng
        for rows, n, k in ((1, 33, 31), (17, 40, 67), (3, 65, 64)):
            for dtype in ("fp32", "fp16", "bf16"):
                packed = self.cpu.pack_linear(stored(rng.standard_normal((n, k)), dtype), ComputeMode.FP32)
                x = stored(rng.standard_normal((rows, k)), "fp32")
                assert_same(self.cuda.linear(x, packed), self.cpu.linear(x, packed))
        for dtype in ("int8", "int4"):
            for k, group in ((70, 32), (64, 32), (96, 64)):
                x = stored(rng.standard_normal((17, k)), "fp32")
                w = stored(rng.standard_normal((33, k)), "fp32")
                packed = self.cpu.quantize_linear(w, dtype, group)
                expected = as_float64(x) @ values(read(packed.data, dtype, 33, k, group), group).T
                _close(self.cuda.linear(x, packed), expected, _TENSOR_BOUND)
        self._edges_of_exp()
        self._experts(lambda rows: rows, "bf16", exact=True)

    def _edges_of_exp(self) -> None:
        """silu right at the arguments where exp32 becomes infinite, and zero."""
        one = np.ones((1, 1), dtype=np.float32)
        expert = self.cpu.pack_expert(one, one, one, ComputeMode.FP32)
        x = np.array([[-88.72283], [87.33654], [-87.33654]], dtype=np.float32)
        batch, _ = unit_batch(
            np.zeros((3, 1), dtype=np.uint16), np.ones((3, 1), dtype=np.float32), folded=False
        )
        assert_same(self.cuda.expert_units(x, [expert], batch), self.cpu.expert_units(x, [expert], batch))

    def _edges_of_the_gate(self) -> None:
        """Segments end where they must, the least weight there is, and rows that are not finite."""
        weight = np.zeros((8, 256), dtype=np.float32)
        weight[0, 7:10] = 1, 2.0**30, -(2.0**30)  # 1 where a segment ends behind it, else lost
        weight[1, 0] = 0.5
        packed = self.cpu.pack_linear(weight, ComputeMode.FP32)
        x = np.ones((5, 256), dtype=np.float32)
        assert self.cuda.gate(x, packed, 2).experts.tolist() == [[0, 1]] * 5
        x[1, 5] = np.inf
        x[3] = 3e38
        assert self.cuda.gate(x, packed, 2).ok.tolist() == [True, False, True, False, True]
        far = self.cpu.pack_linear(np.array([[0.0], [-87.33654]], dtype=np.float32), ComputeMode.FP32)
        one = np.ones((1, 1), dtype=np.float32)
        assert_same(self.cuda.gate(one, far, 2).weights, self.cpu.gate(one, far, 2).weights)

    def gate(self) -> None:
        rng = self.rng
        self._edges_of_the_gate()
        for experts, k, hidden in ((8, 2, 300), (40, 5, 67), (9, 3, 66)):
            x = stored(rng.standard_normal((37, hidden)), "bf16")
            weight = stored(rng.standard_normal((experts, hidden)), "bf16")
            packed = self.cpu.pack_linear(weight, ComputeMode.BF16)
            result, offsets, order = self.cuda.gate_and_group(x, packed, k)
            logits = as_float64(x) @ as_float64(weight).T
            chosen = np.argsort(-logits, axis=1, kind="stable")[:, :k]
            best = np.take_along_axis(logits, chosen, axis=1)
            got = np.take_along_axis(logits, result.experts.astype(np.int64), axis=1)
            np.testing.assert_allclose(got, best, rtol=1e-5, atol=1e-4)
            e = np.exp(best - best[:, :1])
            _close(result.weights, e / e.sum(axis=1, keepdims=True), 1e-4)
            keys = result.experts.reshape(-1)
            assert order.tolist() == np.argsort(keys, kind="stable").tolist()
            assert offsets.tolist() == [0, *np.cumsum(np.bincount(keys, minlength=experts)).tolist()]
            alone = self.cuda.gate(x[3:4], packed, k)
            assert_same(alone.weights, result.weights[3:4])
        ties = self.cpu.pack_linear(rng.integers(-1, 2, (40, 4)).astype(np.float32), ComputeMode.FP32)
        x = rng.integers(-1, 2, (9, 4)).astype(np.float32)
        assert_same(self.cuda.gate(x, ties, 7).experts, self.cpu.gate(x, ties, 7).experts)
        for buckets in (3, 900):
            many = rng.integers(0, buckets, 1500).astype(np.uint32)
            offsets, order = self.cuda.group(many, buckets)
            assert order.tolist() == np.argsort(many, kind="stable").tolist()
            assert offsets[-1] == len(many)
            assert offsets.tolist() == [0, *np.cumsum(np.bincount(many, minlength=buckets)).tolist()]

    def sample(self) -> None:
        for count in (1, 300, 700):
            logits = (self.rng.standard_normal(count) * 3).astype(np.float32)
            for params in (SamplingParams(), SamplingParams(1.1, 40, 0.8, 5, 0, 0.02), SamplingParams(0.9)):
                for index in range(3):
                    got = self.cuda.sample(logits, params, index)
                    assert got == self.cpu.sample(logits, params, index)
            assert_same(self.cuda.log_sum_exp(logits[None]), self.cpu.log_sum_exp(logits[None]))
        self._edges_of_sampling()

    def _edges_of_sampling(self) -> None:
        """Padding that would come first, sums and thresholds that are equal, and a logit that is infinite."""
        low = np.linspace(-60, -50, 300).astype(np.float32)
        even = np.zeros(2, dtype=np.float32)
        for logits, params in (
            (low, SamplingParams(1.0, 3, seed=5)),
            (low, SamplingParams(1.0, top_p=0.9, seed=5)),
            (even, SamplingParams(1.0, min_p=1.0, seed=5)),
            (even, SamplingParams(1.0, top_p=0.5, seed=5)),
        ):
            for index in range(8):
                assert self.cuda.sample(logits, params, index) == self.cpu.sample(logits, params, index)
        endless = np.array([0, np.inf, 1], dtype=np.float32)
        said = []
        for backend in (self.cuda, ReferenceBackend()):
            try:
                backend.sample(endless, SamplingParams(1.0), 0)
            except ValueError as error:
                said.append(str(error))
        assert len(said) == 2, f"an infinite logit: {said}"
        assert said[0] == said[1], said
        with patch("colibri.kernels.cuda.sampling.uniform", lambda *_: 0.5):
            assert self.cuda.sample(even, SamplingParams(1.0), 0) == 1, (
                "half of the sum is not above half of it"
            )

    def tensor(self, dtype: str) -> None:
        rng = self.rng
        for k, n in ((16, 33), (130, 65), (131, 40), (96, 40), (128, 40), (700, 40)):
            w = stored(rng.standard_normal((n, k)), "bf16")
            if dtype == "bf16":
                packed, wide = self.cpu.pack_linear(w, ComputeMode.BF16), as_float64(w)
            else:
                packed = self.cpu.quantize_linear(w, dtype, 64)
                wide = values(read(packed.data, dtype, n, k, 64), 64)
            x = stored(rng.standard_normal((70, k)), "bf16")
            whole = self.cuda.linear(x, packed)
            _close(whole, as_float64(x) @ wide.T, _TENSOR_BOUND)
            for first, rows in ((0, 1), (8, 8), (60, 10), (3, 32)):
                part = np.ascontiguousarray(x[first : first + rows])
                assert_same(self.cuda.linear(part, packed), whole[first : first + rows])
        if dtype == "bf16":
            w = np.zeros((8, 512), dtype=np.float32)
            w[:, 127:130] = 1, 2.0**30, -(2.0**30)  # 1 where a segment ends behind it, else lost
            ones = self.cuda.linear(bf16(np.ones((3, 512))), self.cpu.pack_linear(bf16(w), ComputeMode.BF16))
            assert (ones == 1).all(), "segments of K: other ones"
        self._experts(lambda rows: rows, dtype, exact=False)

    def _experts(self, narrowed: Callable[[Array], Array], dtype: str, *, exact: bool) -> None:
        """Two experts, so that rows are gathered and tiles of several groups share a launch."""
        rng = self.rng
        hidden, ffn = 72, 40
        packed: list[PackedExpert] = []
        for _ in range(2):
            gate, up, down = (
                stored(rng.standard_normal(s) / 6, "bf16")
                for s in ((ffn, hidden), (ffn, hidden), (hidden, ffn))
            )
            packed.append(
                self.cpu.pack_expert(gate, up, down, ComputeMode.BF16)
                if dtype == "bf16"
                else self.cpu.quantize_expert(gate, up, down, dtype, 32)
            )
        for rows in (3, 40):
            x = stored(rng.standard_normal((rows, hidden)), "bf16")
            chosen = np.array([rng.permutation(2) for _ in x], dtype=np.uint16)
            weights = rng.random(chosen.shape).astype(np.float32)
            batch, _ = unit_batch(chosen, weights, folded=True)
            got = self.cuda.expert_units(x, packed, batch)
            if exact:
                assert_same(got, self.cpu.expert_units(x, packed, batch))
                continue
            expected = np.zeros((rows, hidden))
            wide = [_matrices(e) for e in packed]
            for row in range(rows):
                for slot in range(2):
                    gate, up, down = wide[chosen[row, slot]]
                    middle = silu(gate @ as_float64(x[row])) * (up @ as_float64(x[row]))
                    expected[row] += weights[row, slot] * (down @ as_float64(bf16(middle)))
            _close(narrowed(got), expected, _EXPERT_BOUND)


def probe(
    module: str, library: Callable[[str], Library], *, guarded: bool = True, seed: int | None = None
) -> None:
    """Raises AssertionError when a kernel of the module is wrong under some schedule."""
    for schedule in SCHEDULES:
        architecture = 75 if module == "plain" else 80
        device = EmulatedDevice(architecture, schedule=schedule, library=library, guarded=guarded)
        cpu = CpuBackend(1)
        with np.errstate(all="ignore"):
            checked = Probe(
                CudaBackend(device, weight_bytes=1 << 26, packer=cpu), cpu, np.random.default_rng(seed)
            )
            if module.startswith("tensor_"):
                checked.tensor(module.removeprefix("tensor_"))
            else:
                getattr(checked, module)()


def _matrices(expert: PackedExpert) -> tuple[Array, Array, Array]:
    if expert.dtype == "bf16":
        from colibri.kernels.layout.packing import unpack_expert

        gate, up, down = (as_float64(m) for m in unpack_expert(expert))
    else:
        gate, up, down = (values(m, expert.group) for m in read_expert(expert))
    return gate, up, down


def _close(got: Array, expected: Array, limit: float) -> None:
    assert got.shape == expected.shape
    error = float(np.max(np.abs(as_float64(got) - expected))) / float(np.max(np.abs(expected)))
    assert error <= limit, f"largest error: at most {limit}, got {error}"


def main() -> None:
    module, path = sys.argv[1:3]
    mutated = Library(Path(path))

    def library(kernel: str) -> Library:
        return mutated if module_of(kernel).name == module else library_of(kernel)

    try:
        probe(module, library, guarded="--bare" not in sys.argv)
    except (AssertionError, DeviceError, IndexError, ValueError) as error:
        print(f"caught: {str(error)[:200]}", file=sys.stderr)
        raise SystemExit(3) from error


if __name__ == "__main__":
    main()
