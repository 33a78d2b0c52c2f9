"""Device memory of weights: its budget, who leaves, streaming in waves with the same bits, staging within its bound."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from colibri.kernels.api import ComputeMode, PackedExpert
from colibri.kernels.cuda.backend import CudaBackend
from colibri.kernels.cuda.device import DeviceMemoryError
from colibri.kernels.cuda.memory import MemoryBudget
from colibri.kernels.cuda.small_uploads import SmallUploads
from colibri.kernels.cuda.staging import LEAST_BYTES, StagingRing
from colibri.kernels.cuda.weights import WeightCache
from tests.conformance.kernels.support import stored, unit_batch
from tests.support.cuda.emulated import EmulatedDevice, HostBuffer


def random_bytes(n: int) -> np.ndarray:
    return np.random.default_rng().integers(0, 256, n, dtype=np.uint8)


def content(buffer: object) -> bytes:
    assert isinstance(buffer, HostBuffer)
    return buffer.bytes.tobytes()


def test_a_copy_is_whole_when_launches_may_read_it() -> None:
    cache = WeightCache(EmulatedDevice(), 1 << 20, LEAST_BYTES)
    arrays = [random_bytes(n) for n in (1, 5000, 200_000)]  # one piece, and more than the ring holds
    for buffer, array in zip(cache.use(arrays), arrays, strict=True):
        assert content(buffer) == array.tobytes()
    assert cache.nbytes == 205_001


def test_the_least_recently_used_leaves_and_comes_back_right() -> None:
    cache = WeightCache(EmulatedDevice(), 3000, LEAST_BYTES)
    a, b, c, d = (random_bytes(1000) for _ in range(4))
    first = cache.use([a, b, c])
    assert cache.use([a])[0] is first[0]
    assert content(cache.use([d])[0]) == d.tobytes()  # in place of b
    assert cache.nbytes == 3000
    assert cache.use([a])[0] is first[0]
    assert content(cache.use([b])[0]) == b.tobytes()


def test_an_array_that_is_gone_takes_its_copy_along() -> None:
    cache = WeightCache(EmulatedDevice(), 3000, LEAST_BYTES)
    a = random_bytes(1000)
    cache.use([a])
    del a
    gc.collect()
    assert cache.nbytes == 0


def test_more_than_the_budget_is_an_error_that_names_both() -> None:
    cache = WeightCache(EmulatedDevice(), 3000, LEAST_BYTES)
    with pytest.raises(DeviceMemoryError, match=r"weight_bytes: expected at least the 3500 bytes.*got 3000"):
        cache.use([random_bytes(2000), random_bytes(1500)])


def test_a_budget_counts_what_is_held() -> None:
    budget = MemoryBudget("memory of cuda:0", 100)
    budget.take(60)
    with pytest.raises(
        DeviceMemoryError, match=r"memory of cuda:0: .*budget of 100 bytes, got 50 more on top of 60"
    ):
        budget.take(50)
    budget.give(20)
    budget.take(50)
    assert (budget.held, budget.most) == (90, 90)


def test_staging_stays_within_its_bound() -> None:
    device = EmulatedDevice()
    ring = StagingRing(device, 1 << 20)
    source = random_bytes(5 << 20)
    target = device.empty(source.nbytes)
    event = ring.copy(target, source, None)
    assert event is not None
    event.wait()
    assert content(target) == source.tobytes()
    assert ring.nbytes <= 1 << 20
    with pytest.raises(ValueError, match="dma_buffer_size: expected at least 65536 bytes, got 100"):
        StagingRing(device, 100)


@pytest.mark.parametrize(("dtype", "architecture"), [("bf16", 80), ("int4", 90), ("bf16", 75)])
def test_more_experts_than_memory_stream_through_with_the_same_bits(dtype: str, architecture: int) -> None:
    rng = np.random.default_rng()
    resident = CudaBackend(EmulatedDevice(architecture), weight_bytes=1 << 24)
    experts: list[PackedExpert] = []
    for _ in range(7):
        gate, up, down = (stored(rng.standard_normal(s) / 6, "bf16") for s in ((24, 40), (24, 40), (40, 24)))
        experts.append(
            resident.pack_expert(gate, up, down, ComputeMode.BF16)
            if dtype == "bf16"
            else resident.quantize_expert(gate, up, down, dtype, 32)
        )
    x = stored(rng.standard_normal((30, 40)), "bf16")
    chosen = np.array([rng.permutation(7)[:3] for _ in x], dtype=np.uint16)
    batch, _ = unit_batch(chosen, rng.random(chosen.shape).astype(np.float32), folded=True)
    expected = resident.expert_units(x, experts, batch)
    device = EmulatedDevice(architecture)
    narrow = CudaBackend(device, weight_bytes=4 * experts[0].data.nbytes, dma_buffer_size=LEAST_BYTES)
    for _ in range(2):
        assert narrow.expert_units(x, experts, batch).tobytes() == expected.tobytes()
    products = [name for name, _, _ in device.launches if name != "merge_rows"]
    assert len(products) >= 2 * 4, "expected runs of two experts each"


def test_the_block_size_is_that_of_the_row_kernels() -> None:
    results = []
    for size in (32, 96, 1024):
        device = EmulatedDevice()
        backend = CudaBackend(device, weight_bytes=1 << 20, block_size=size)
        x = np.arange(7 * 33, dtype=np.float32).reshape(7, 33)
        results.append(backend.rms_norm(x, np.ones(33, dtype=np.float32), 1e-5, ComputeMode.FP32).tobytes())
        assert device.launches[-1][2] == size
    assert len(set(results)) == 1
    for wrong in (0, 31, 1056):
        with pytest.raises(ValueError, match="block_size: expected a multiple of 32 from 32 to 1024"):
            CudaBackend(EmulatedDevice(), weight_bytes=1, block_size=wrong)


def test_small_arrays_wait_only_for_copies_out_of_their_own_half() -> None:
    marks: list[int] = []
    waited: list[int] = []

    class Mark:
        def __init__(self) -> None:
            self.number = len(marks)
            marks.append(self.number)

        def wait(self) -> None:
            waited.append(self.number)

    memory = np.zeros(2048, dtype=np.uint8)
    small = SmallUploads(memory, Mark)
    placed = []
    for number in range(40):
        source = random_bytes(100)
        found = small.place(source)
        assert found is not None
        assert found.tobytes() == source.tobytes()
        placed.append((number, found.ctypes.data - memory.ctypes.data))
    assert {at // 1024 for _, at in placed} == {0, 1}
    # Eight to a half: at each change what leaves is marked, what is entered again is waited for.
    assert [at for _, at in placed[:9]] == [*range(0, 1024, 128), 1024]
    assert marks == [0, 1, 2, 3]
    assert waited == [0, 1, 2]
    assert small.place(random_bytes(1025)) is None
