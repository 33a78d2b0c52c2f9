"""Workers whose GPU is emulated, over real gRPC: the same bits as in one process, also with the gate on CPUs, and no
mixing with CPU workers unless asked for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colibri.errors import NumericsMismatch
from colibri.kernels.api import ComputeMode
from colibri.kernels.cpu.backend import CpuBackend
from colibri.kernels.cuda.backend import CudaBackend
from colibri.placement import Directory
from colibri.router_service.handshake import RouterIdentity
from colibri.router_service.router import MoeRouter
from tests.conformance.kernels.support import as_float64
from tests.support.cuda.emulated import EmulatedDevice
from tests.support.expert_servers import MoeBench, membership_of


@pytest.fixture(params=[75, 90], ids=["simt", "mma-sm90"])
def bench(request: pytest.FixtureRequest, tiny_mixtral: Path, tmp_path: Path) -> Iterator[MoeBench]:
    backend = CudaBackend(EmulatedDevice(request.param), weight_bytes=1 << 26)
    made = MoeBench(tiny_mixtral, ComputeMode.BF16, tmp_path, backend)
    made.numerics = replace(made.numerics, family=backend.isa)
    yield made
    backend.close()


def test_two_workers_give_the_bits_of_one_process(bench: MoeBench) -> None:
    x = bench.rows(np.random.default_rng(), 40)
    with bench.workers(2) as servers:
        directory = Directory(membership_of(bench.spread(2), *servers.values()))
        with bench.remote(directory) as (router, executor):
            assert not executor.connect()
            for layer in range(bench.layers):
                found, expected = router.forward(layer, x), bench.local().forward(layer, x)
                assert not found.failed
                assert found.rows.tobytes() == expected.rows.tobytes()
                alone = router.forward(layer, np.ascontiguousarray(x[7:8]))
                assert alone.rows.tobytes() == expected.rows[7:8].tobytes()


def test_the_gate_may_stay_on_a_cpu(bench: MoeBench) -> None:
    x = bench.rows(np.random.default_rng(), 20)
    cpu = CpuBackend(1)
    gates = [cpu.pack_linear(bench.checkpoint.gate(layer), bench.mode) for layer in range(bench.layers)]
    with bench.workers(1) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        with bench.remote(directory) as (_, executor):
            hybrid = MoeRouter(cpu, bench.mode, gates, bench.top_k, directory, executor).forward(0, x)
            expected = MoeBench(bench.model, bench.mode, bench.folder, cpu).local().forward(0, x)
    assert not hybrid.failed
    error = as_float64(hybrid.rows) - as_float64(expected.rows)
    assert np.sqrt(np.mean(error**2)) <= 5e-3 * np.sqrt(np.mean(as_float64(expected.rows) ** 2))
    cpu.close()


def test_a_router_of_cpu_workers_refuses_a_gpu(bench: MoeBench) -> None:
    with bench.workers(1) as servers:
        directory = Directory(membership_of(bench.spread(1), *servers.values()))
        of_cpu = replace(bench.numerics, backend="cpu", family="any").id
        identity = RouterIdentity("test", bench.checkpoint.model_hash(), of_cpu)
        with bench.remote(directory, identity=identity) as (_, executor):
            error = executor.connect()["w0"]
    assert isinstance(error, NumericsMismatch)
    assert of_cpu in error.message
    assert bench.numerics.id in error.message
