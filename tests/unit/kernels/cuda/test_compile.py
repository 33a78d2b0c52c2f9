"""Every kernel compiles by NVRTC for every architecture without a warning, within its resources, and with the
instructions that it is written for."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from colibri.kernels.cuda.compiler import CompileError, compile_cubin, compile_ptx
from colibri.kernels.cuda.plan import PLAIN_SHARED, tensor_kernel
from colibri.kernels.cuda.sources import ARCHITECTURES, Module, modules
from tests.support.cuda.bounds import SHARED_BYTES, resource_bounds
from tests.support.cuda.build import ROOT
from tests.support.cuda.cubin import read_resources

cupy = pytest.importorskip("cupy", reason="the extra `test` brings CuPy and NVRTC")
pytestmark = pytest.mark.slow  # NVRTC

CACHE = ROOT / "build" / "cuda_cubins"
PAIRS = [(module, a) for module in modules() for a in ARCHITECTURES if a >= module.least]


@pytest.mark.parametrize(("module", "architecture"), PAIRS, ids=[f"{m.name}-{a}" for m, a in PAIRS])
def test_compiles_within_its_bounds(module: Module, architecture: int) -> None:
    found = read_resources(compile_cubin(module, architecture, CACHE))
    assert set(found) == set(module.kernels)
    for kernel, resources in found.items():
        bounds = resource_bounds(kernel)
        assert 0 < resources.registers <= bounds.registers, kernel
        assert resources.stack <= bounds.stack, f"{kernel}: spills"
        assert resources.shared <= bounds.shared, kernel


def test_every_kernel_is_in_one_module() -> None:
    names = [kernel for module in modules() for kernel in module.kernels]
    assert len(names) == len(set(names)) == 22


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_tiles_fit_the_smallest_card(dtype: str) -> None:
    for rows in (1, 8, 9, 32, 33, 4096):
        kernel = tensor_kernel(dtype, rows)
        assert kernel.shared <= SHARED_BYTES
        assert kernel.resident == 1 or kernel.resident * kernel.shared <= 227 << 10
    assert PLAIN_SHARED <= 48 << 10


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
def test_tensor_cores_and_asynchronous_copies_are_in_the_ptx(dtype: str) -> None:
    module = next(m for m in modules() if m.name == f"tensor_{dtype}")
    ptx = compile_ptx(module, 80)
    for kernel in module.kernels:
        body = ptx[ptx.index(f".entry {kernel}(") :]
        body = body[: body.index("\n}\n")]
        assert "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32" in body
        assert "cp.async.cg.shared.global" in body
        assert "cp.async.wait_group 2" in body
        assert "atom.global.add.f32" not in body
        assert ("fma.rn.bf16x2" in body) == (dtype != "bf16")


def test_no_contraction_and_no_approximation() -> None:
    """Of multiplications and additions only what is written as one fma is one; no floating-point atomics anywhere."""
    for module in modules():
        ptx = compile_ptx(module, max(module.least, 75))
        for wrong in (
            "div.approx",
            "div.full",
            "sqrt.approx",
            "ex2.approx",
            "rcp.approx",
            "red.global.add.f",
            "atom.global.add.f",
        ):
            assert wrong not in ptx, f"{module.name}: {wrong}"
    rows = next(m for m in modules() if m.name == "rows")
    body = compile_ptx(rows, 80).split(".entry merge_rows(")[1].split("\n}\n")[0]
    assert "add.rn.ftz.f32" in body
    assert "fma" not in body


@pytest.mark.parametrize("architecture", [80, 90])
def test_the_machine_code_has_them(architecture: int, tmp_path: Path) -> None:
    tool = _nvdisasm()
    if tool is None:
        pytest.skip("no nvdisasm; the extra `test` brings it")
    for dtype in ("bf16", "int8", "int4"):
        module = next(m for m in modules() if m.name == f"tensor_{dtype}")
        path = tmp_path / f"{dtype}.cubin"
        path.write_bytes(compile_cubin(module, architecture, CACHE))
        done = subprocess.run([tool, "-c", path], capture_output=True, text=True, timeout=60, check=True)
        assert "HMMA.16816.F32.BF16" in done.stdout
        assert "LDGSTS.E.BYPASS.128" in done.stdout


def test_a_warning_is_an_error() -> None:
    bad = Module("bad", 'extern "C" __global__ void f(int* x) { int unused = 3; *x = 1; }', ("f",), 75)
    with pytest.raises(CompileError, match=r"bad\.cu for sm_80.*unused"):
        compile_cubin(bad, 80, None)


def test_an_error_has_the_log() -> None:
    bad = Module("bad", 'extern "C" __global__ void f(int* x) { *x = nothing; }', ("f",), 75)
    with pytest.raises(CompileError, match="nothing"):
        compile_cubin(bad, 80, None)


def test_the_cache_is_keyed_and_checked(tmp_path: Path) -> None:
    module = next(m for m in modules() if m.name == "rows")
    made = compile_cubin(module, 80, tmp_path)
    (path,) = tmp_path.iterdir()
    changed = made[:-1] + b"x"
    path.write_bytes(path.read_bytes()[:32] + changed)
    assert compile_cubin(module, 80, tmp_path) == made  # damaged: made anew
    stamp = path.stat().st_mtime_ns
    assert compile_cubin(module, 80, tmp_path) == made
    assert path.stat().st_mtime_ns == stamp  # read, not made
    compile_cubin(module, 89, tmp_path)
    compile_cubin(module, 80, tmp_path, driver=12040)
    assert len(list(tmp_path.iterdir())) == 3
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert compile_cubin(module, 80, blocked / "under") == made  # a cache that cannot be written is none


def _nvdisasm() -> str | None:
    found = shutil.which("nvdisasm")
    if found:
        return found
    for base in Path(cupy.__file__).parents[1].glob("nvidia/*/bin/nvdisasm"):
        if os.access(base, os.X_OK):
            return str(base)
    return None
