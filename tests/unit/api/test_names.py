"""The names of the package `colibri`: loaded when they are used, and only those."""

from __future__ import annotations

import subprocess
import sys

import pytest

import colibri

HEAVY = ("numpy", "grpc", "google.protobuf", "tokenizers", "rich", "argparse", "asyncio")


def test_the_package_alone_loads_nothing() -> None:
    program = (
        f"import sys, colibri; dir(colibri); print([name for name in {HEAVY} if name in sys.modules], "
        "[name for name in sys.modules if name.startswith('colibri.')])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "[] ['colibri.version']\n"


def test_options_load_no_model() -> None:
    program = (
        "import sys; from colibri import ClusterOptions, ColibriError, GpuOptions, PinningOptions\n"
        "print([name for name in ('numpy', 'grpc') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("name", colibri.__all__)
def test_every_name_is_there(name: str) -> None:
    found = getattr(colibri, name)
    assert name in dir(colibri)
    assert isinstance(found, str) or found.__name__ == name
    assert isinstance(found, str) or found.__doc__


def test_other_names_are_not() -> None:
    with pytest.raises(AttributeError, match="module 'colibri' has no attribute 'Colibrio'"):
        getattr(colibri, "Colibrio")  # noqa: B009 - a type checker would refuse it
