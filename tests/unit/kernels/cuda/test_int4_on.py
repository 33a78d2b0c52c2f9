"""int4 experts that the CPU dequantises on their way to the card: the bits of bf16 experts of the same weights."""

from __future__ import annotations

import numpy as np
import pytest

from colibri.errors import ConfigError
from colibri.expert_service.config import WorkerConfig
from colibri.expert_service.gpu_options import GpuOptions
from colibri.kernels.api import ComputeMode
from colibri.kernels.arithmetic.floats import to_bf16
from colibri.kernels.cpu.backend import CpuBackend
from colibri.kernels.cuda.backend import CudaBackend
from colibri.kernels.cuda.staging import LEAST_BYTES
from colibri.kernels.reference.quantised import dequantize_expert
from tests.conformance.kernels.support import stored, unit_batch
from tests.support.cuda.emulated import EmulatedDevice


@pytest.mark.parametrize("rows_in", ["bf16", "fp32"])
@pytest.mark.parametrize("architecture", [75, 80])
@pytest.mark.parametrize(("hidden", "ffn"), [(40, 24), (33, 47), (72, 80)])
def test_it_is_the_bf16_path(architecture: int, rows_in: str, hidden: int, ffn: int) -> None:
    rng = np.random.default_rng()
    packer = CpuBackend()
    narrow, wide = [], []
    for _ in range(5):
        shapes = ((ffn, hidden), (ffn, hidden), (hidden, ffn))
        gate, up, down = (stored(rng.standard_normal(s) / 6, "bf16") for s in shapes)
        narrow.append(packer.quantize_expert(gate, up, down, "int4", 32))
        gate, up, down = (to_bf16(each) for each in dequantize_expert(narrow[-1]))
        wide.append(packer.pack_expert(gate, up, down, ComputeMode.BF16))
    x = stored(rng.standard_normal((19, hidden)), rows_in)
    chosen = np.array([rng.permutation(5)[:2] for _ in x], dtype=np.uint16)
    batch, _ = unit_batch(chosen, rng.random(chosen.shape).astype(np.float32), folded=True)
    plain = CudaBackend(EmulatedDevice(architecture), weight_bytes=1 << 24)
    right = plain.expert_units(x, wide, batch)
    in_kernel = plain.expert_units(x, narrow, batch)
    assert in_kernel.tobytes() != right.tobytes(), "other bits, hence another id"
    # All at once, and streamed through a small ring with room for four experts.
    for weight_bytes, ring in ((1 << 24, 1 << 20), (4 * wide[0].data.nbytes, LEAST_BYTES)):
        device = EmulatedDevice(architecture)
        backend = CudaBackend(
            device, weight_bytes=weight_bytes, dma_buffer_size=ring, packer=packer, int4_on="cpu"
        )
        for _ in range(2):
            assert backend.expert_units(x, narrow, batch).tobytes() == right.tobytes()
        assert backend.isa == ("mma-sm80+int4-cpu" if architecture == 80 else "simt+int4-cpu")
        assert not any("int4" in name for name, _, _ in device.launches)
        backend.close()
    packer.close()


def test_who_cannot_is_refused() -> None:
    with pytest.raises(ValueError, match="packer: expected the cpu backend with int4_on cpu, got reference"):
        CudaBackend(EmulatedDevice(), weight_bytes=1, int4_on="cpu")
    with pytest.raises(ValueError, match="int4_on: expected gpu or cpu, got 'both'"):
        CudaBackend(EmulatedDevice(), weight_bytes=1, int4_on="both")
    for where in ("gpu", "cpu"):
        with pytest.raises(ConfigError, match="--int4-on: expected a GPU by --device, got cpu"):
            WorkerConfig("m", "w0", "127.0.0.1:0", "bf16", gpu=GpuOptions(int4_on=where))
