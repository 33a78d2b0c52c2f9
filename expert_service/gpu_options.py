"""How a worker with a GPU computes. Imports nothing heavy: `colibri expert` reads it before it settles."""

from __future__ import annotations

from dataclasses import dataclass

from colibri.errors import ConfigError

BLOCK_SIZE = 256
DMA_BUFFER_BYTES = 64 << 20
LEAST_DMA_BUFFER_BYTES, MOST_DMA_BUFFER_BYTES = 64 << 10, 1 << 40


@dataclass(frozen=True, slots=True)
class GpuOptions:
    """Options of workers on a GPU; None takes the default. Sizes change no bit of a result, `int4_on` does.

    block_size: threads in a block of the row-wise kernels, a multiple of 32 from 32 to 1024 (256).
    dma_buffer_bytes: pinned host memory through which weights reach the GPU, 64 KiB to 1 TiB (64 MiB).
    int4_on: what dequantises int4 experts: "gpu", in its kernel (the default), or "cpu", into pinned memory.

    Raises ConfigError, naming the option, for a value out of range.
    """

    block_size: int | None = None
    dma_buffer_bytes: int | None = None
    int4_on: str | None = None

    def __post_init__(self) -> None:
        block, buffer = self.block_size, self.dma_buffer_bytes
        if block is not None and (block % 32 or not 32 <= block <= 1024):
            raise ConfigError("--gpu-block-size", "a multiple of 32 from 32 to 1024", block)
        if buffer is not None and not LEAST_DMA_BUFFER_BYTES <= buffer <= MOST_DMA_BUFFER_BYTES:
            expected = f"bytes from {LEAST_DMA_BUFFER_BYTES} to {MOST_DMA_BUFFER_BYTES}"
            raise ConfigError("--dma-buffer-size", expected, buffer)
        if self.int4_on not in (None, "gpu", "cpu"):
            raise ConfigError("--int4-on", "gpu or cpu", self.int4_on)

    def given(self) -> dict[str, str]:
        """Returns the options that are set, as the command line of `colibri expert` names them, without dashes."""
        values = {
            "gpu-block-size": self.block_size,
            "dma-buffer-size": self.dma_buffer_bytes,
            "int4-on": self.int4_on,
        }
        return {name: str(value) for name, value in values.items() if value is not None}
