"""The kernels' sources: modules (one `.cu` file each), headers, and the kernels of each module."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from colibri.kernels.cuda.plan import TENSOR_ARCHITECTURE

FOLDER = Path(__file__).parent / "source"
#: Architectures every module is checked for; others compile as well.
ARCHITECTURES = (75, 80, 89, 90, 100)

_KERNEL = re.compile(
    r'extern "C" __global__ void\s*(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\s*\(|^GROUPED\((\w+),',
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Module:
    """One `.cu` file. kernels: in its order; least: the lowest architecture that has its instructions."""

    name: str
    text: str
    kernels: tuple[str, ...]
    least: int


@cache
def modules() -> tuple[Module, ...]:
    found = []
    for path in sorted(FOLDER.glob("*.cu")):
        text = path.read_text()
        kernels = tuple(plain or grouped for plain, grouped in _KERNEL.findall(text))
        least = TENSOR_ARCHITECTURE if path.stem.startswith("tensor_") else min(ARCHITECTURES)
        found.append(Module(path.stem, text, kernels, least))
    return tuple(found)


@cache
def headers() -> dict[str, str]:
    """Returns the text of each header by its name."""
    return {path.name: path.read_text() for path in sorted(FOLDER.glob("*.cuh"))}


@cache
def module_of(kernel: str) -> Module:
    """Returns the module of a kernel. Raises KeyError for an unknown one."""
    for module in modules():
        if kernel in module.kernels:
            return module
    raise KeyError(kernel)
