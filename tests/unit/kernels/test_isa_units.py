"""What the per-path C++ units may see.

A standard inline function compiled for AVX-512 could be the copy that the linker keeps for all paths
(kernels/cpu/simd.h).
"""

from __future__ import annotations

import re
from pathlib import Path

import colibri.kernels.cpu

SOURCES = Path(colibri.kernels.cpu.__file__).parent
ALLOWED = {"stddef.h", "stdint.h", "string.h", "immintrin.h"}


def includes(file: Path) -> tuple[set[str], set[str]]:
    text = file.read_text()
    return set(re.findall(r'#include "(.+)"', text)), set(re.findall(r"#include <(.+)>", text))


def test_units_include_no_standard_templates() -> None:
    pending = {path.name for path in SOURCES.glob("isa_*.cpp")}
    assert len(pending) == 4
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        seen.add(name)
        own, system = includes(SOURCES / name)
        assert system <= ALLOWED, f"{name} includes {sorted(system - ALLOWED)}"
        pending |= own - seen
    assert {"simd_avx512.h", "simd_avx2.h", "simd_portable.h", "gemm_kernels.h"} <= seen


def test_kernels_have_internal_linkage() -> None:
    """Every function of a *_kernels.h file is static, a constexpr function or a template that is forced inline."""
    definition = re.compile(
        r"^(?!\s|//|#|\}|namespace|struct|template|using|constexpr|typedef)(.+\(.*)\{\s*$", re.M
    )
    for file in SOURCES.glob("*_kernels.h"):
        for line in definition.findall(file.read_text()):
            assert line.startswith(("static ", "COLIBRI_INLINE ")), f"{file.name}: {line}"
