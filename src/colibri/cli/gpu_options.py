"""Options of workers on a GPU. Sizes change no bit of a result; what dequantises int4 experts does.

Kept light: `colibri expert` reads them before anything heavy may be imported."""

from __future__ import annotations

import argparse

from colibri.errors import ConfigError
from colibri.expert_service.gpu_options import LEAST_DMA_BUFFER_BYTES, MOST_DMA_BUFFER_BYTES, GpuOptions


def add_gpu(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gpu-block-size",
        type=_block_size,
        default=argparse.SUPPRESS,
        metavar="N",
        help="threads of a block of the GPU's row-wise kernels, a multiple of 32 up to 1024 (default: 256)",
    )
    parser.add_argument(
        "--dma-buffer-size",
        type=_buffer_size,
        default=argparse.SUPPRESS,
        metavar="BYTES",
        help="pinned memory through which weights go to the GPU (default: 67108864)",
    )
    parser.add_argument(
        "--int4-on",
        choices=("gpu", "cpu"),
        default=argparse.SUPPRESS,
        help="where a GPU's int4 experts are dequantised: gpu, in its kernel (the default), or cpu, into pinned "
        "memory, so that they compute as bf16 ones: other bits, and +int4-cpu in the expert_numerics_id",
    )


def gpu_options(args: argparse.Namespace, device: str, *, on_gpu: bool) -> GpuOptions:
    """Returns what `add_gpu` read.

    device: as asked for.
    on_gpu: whether that may be a GPU.

    Raises ConfigError for an option that would do nothing.
    """
    found = GpuOptions(
        *(getattr(args, name, None) for name in ("gpu_block_size", "dma_buffer_size", "int4_on"))
    )
    given = found.given()
    if not on_gpu and given:
        raise ConfigError(f"--{next(iter(given))}", "a GPU by --device", device)
    return found


def _block_size(text: str) -> int:
    if not text.isdecimal() or int(text) % 32 or not 32 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"expected a multiple of 32 from 32 to 1024, got {text!r}")
    return int(text)


def _buffer_size(text: str) -> int:
    least, most = LEAST_DMA_BUFFER_BYTES, MOST_DMA_BUFFER_BYTES
    if not text.isdecimal() or not least <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"expected bytes from {least} to {most}, got {text!r}")
    return int(text)
