"""All lines of `make reach TOPIC=cpu-kernels`, in the order of the table."""

from __future__ import annotations

from benchmarks.cpu_kernels import kernel_lines, layer_lines, model_lines
from benchmarks.table import Line


def lines() -> list[Line]:
    return [*kernel_lines.lines(), *layer_lines.lines(), *model_lines.lines()]
