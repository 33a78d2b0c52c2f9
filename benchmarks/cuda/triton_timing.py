"""The Triton FFN on the same weights and rows as torch's: checked against float64 first, then timed.

Needs torch; Triton is imported by the first call. Rows come sorted by expert, which spares Triton the gather that
Colibri's kernel does itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

#: Largest error, as a part of a row's largest value: h is bf16 in both, sums are fp32. A lost block of K is far beyond.
TOLERANCE = 2.0**-6
#: Rows of each expert that are looked at: its first and last ones.
_CHECKED = 16


class WrongResult(RuntimeError):
    """A kernel computed something else than float64 does."""


def prepare(
    counts: Sequence[int], hidden: int, ffn: int, device: str, seed: int
) -> tuple[Callable[[], None], Callable[[], None]]:
    """(run, check) of one FFN of random bf16 weights: `counts` rows for each expert, each above 0. check runs it once
    on outputs full of NaN. Raises WrongResult from check; ImportError without Triton."""
    import torch

    from benchmarks.cuda import triton_moe

    generator = torch.Generator(device=device).manual_seed(seed)

    def matrix(*shape: int, scale: float = 1.0) -> Any:
        values = torch.randn(*shape, generator=generator, device=device, dtype=torch.float32)
        return (values * scale).to(torch.bfloat16)

    entries = sum(counts)
    x = matrix(entries, hidden)
    w13 = torch.stack([matrix(2 * ffn, hidden, scale=hidden**-0.5) for _ in counts])
    w2 = torch.stack([matrix(hidden, ffn, scale=ffn**-0.5) for _ in counts])
    h = torch.empty(entries, ffn, device=device, dtype=torch.bfloat16)
    y = torch.empty(entries, hidden, device=device, dtype=torch.float32)
    height = triton_moe.block_rows(max(counts))
    expert, first, end = (
        torch.tensor(each, device=device, dtype=torch.int32)
        for each in zip(*_tiles(counts, height), strict=True)
    )

    def run() -> None:
        triton_moe.ffn(x, w13, w2, h, y, (expert, first, end), height)

    def check() -> None:
        h.fill_(float("nan"))
        y.fill_(float("nan"))
        run()
        start = 0
        for number, count in enumerate(counts):
            rows = sorted({*range(min(count, _CHECKED // 2)), *range(max(0, count - _CHECKED // 2), count)})
            at = torch.tensor(rows, device=device) + start
            both = x[at].double() @ w13[number].double().T
            middle = torch.nn.functional.silu(both[:, :ffn]) * both[:, ffn:]
            right = middle.to(torch.bfloat16).double() @ w2[number].double().T
            error = (y[at].double() - right).abs().amax(dim=1) / right.abs().amax(dim=1)
            worst = float(error.max())
            if not worst <= TOLERANCE:
                raise WrongResult(
                    f"WRONG, not timed: expert {number}: expected at most {TOLERANCE:.3g} of a row's largest value off "
                    f"float64, got {worst:.3g}"
                )
            start += count

    return run, check


def _tiles(counts: Sequence[int], height: int) -> list[tuple[int, int, int]]:
    """(expert, first entry, end of the expert's entries) of each tile."""
    tiles, start = [], 0
    for expert, count in enumerate(counts):
        tiles += [(expert, first, start + count) for first in range(start, start + count, height)]
        start += count
    return tiles
