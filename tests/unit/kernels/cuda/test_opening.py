"""Which device a word means, and what is said where it cannot be used. This machine may have a GPU or none."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from colibri.kernels.cuda.cupy_device import CupyDevice, import_cupy, require_driver
from colibri.kernels.cuda.device import DeviceError
from colibri.kernels.cuda.opening import check_node, choose_device, open_cuda, parse_device


def _usable() -> bool:
    try:
        require_driver(import_cupy())
    except DeviceError:
        return False
    return True


@pytest.mark.parametrize("value", ["gpu", "cuda", "cuda:", "cuda:-1", "cuda:01", "CPU", ""])
def test_other_words_are_refused(value: str) -> None:
    with pytest.raises(ValueError, match="device: expected auto, cpu, cuda:N or cuda:PCI-ADDRESS, got"):
        parse_device(value)


def test_words() -> None:
    assert choose_device("cpu", print) is None
    assert choose_device("cuda:3", print) == 3


@pytest.mark.skipif(_usable(), reason="there is a GPU")
def test_auto_without_a_gpu_says_why() -> None:
    said: list[str] = []
    assert choose_device("auto", said.append) is None
    assert said[0].startswith("device auto: the CPU (")


@pytest.mark.skipif(_usable(), reason="there is a GPU")
def test_a_device_without_a_driver_names_it() -> None:
    pytest.importorskip("cupy")
    with pytest.raises(
        DeviceError, match=r"driver: expected one for NVIDIA cards that CUDA 1[23] can use, got"
    ):
        open_cuda(0, numa_node=-1, cache=None)
    with pytest.raises(DeviceError, match="driver: expected"):
        CupyDevice(0, memory_bytes=None, pinned_bytes=1 << 20, cache=None)


def test_without_cupy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    pip = re.escape(f"({shlex.quote(sys.executable)} -m pip install cupy-cuda12x ")
    with pytest.raises(DeviceError, match=rf"CuPy: expected it installed {pip}[^)]*\)"):
        open_cuda(0, numa_node=-1, cache=tmp_path)


def test_a_device_of_another_node_names_both() -> None:
    check_node(0, 1, 1)
    check_node(0, -1, 1)
    check_node(0, 1, -1)
    with pytest.raises(
        DeviceError, match=r"numa_node: expected 1, the node of cuda:0, got 0 \(--numa-node 1\)"
    ):
        check_node(0, 1, 0)
