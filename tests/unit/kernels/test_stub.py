"""kernels/_native.pyi says what the extension module holds.

After a change: `python -m nanobind.stubgen -m colibri.kernels._native -o kernels/_native.pyi`.
"""

from __future__ import annotations

from pathlib import Path

import colibri.kernels.api
from colibri.kernels import _native


def test_stub_is_current() -> None:
    from nanobind.stubgen import StubGen  # type: ignore[import-untyped]

    generator = StubGen(module=_native)
    generator.put(_native)
    stub = Path(colibri.kernels.api.__file__).with_name("_native.pyi")
    assert stub.read_text().strip() == generator.get().strip()
