"""Workers that do not compute the same bits in one deployment: GPU workers (emulated, in processes of their own) beside
CPU workers. An answer is what the mix makes of it, whoever answers, whatever is killed; never one by chance."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from colibri.cluster.experts.holders import copies, holders_of
from colibri.cluster.machine.topology import Gpu
from colibri.cluster.placing.commands import Command, Drain, Move, Scale
from colibri.deployment.assemble_router import RouterOptions, RouterParts, assemble_router
from colibri.deployment.cluster import ClusterOptions
from colibri.deployment.devices import Machine
from colibri.deployment.running import Deployment
from colibri.errors import ColibriError, ConfigError, InvalidInput, NumericsMismatch
from colibri.expert_service.execute import run_units
from colibri.kernels.api import F32, U32, Array, ComputeMode, UnitBatch
from colibri.kernels.cpu.backend import CpuBackend
from colibri.kernels.cuda.backend import CudaBackend
from colibri.models.random_mixtral import random_mixtral
from colibri.numerics import MixedNumerics
from colibri.placement import Directory, Membership, Placement
from colibri.router_service.executor import LocalExecutor
from colibri.router_service.policy import FailoverPolicy
from colibri.router_service.router import MoeRouter
from tests.conftest import TINY
from tests.support.clusters import answer, deployed, eventually, kill, statuses
from tests.support.cuda import emulated_worker
from tests.support.cuda.emulated import EmulatedDevice
from tests.support.expert_servers import MoeBench
from tests.support.packs import pack
from tests.support.tiny_engine import Answer
from tests.support.traffic import Traffic, expected_answers

USERS, TOKENS = 2, 12
#: Two GPUs, as this machine's; their kernels run emulated.
MACHINE = Machine(
    (Gpu("0000:17:00.0", -1), Gpu("0000:65:00.0", -1)),
    require=lambda: None,
    may_use=lambda address: True,
    family=lambda address: emulated_worker.FAMILY,
)
CPU = "cpu/int8/w=int4g32/wire=bf16/any/r1"
CUDA = f"cuda/bf16/w=int4g32/wire=bf16/{emulated_worker.FAMILY}/r1"


@pytest.fixture(scope="module")
def model(tiny_mixtral: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of int4 experts: a CPU quantises their rows, a GPU does not, so that answers differ in sight. What bf16
    experts differ by is mostly rounded away before it reaches a receipt."""
    out = tmp_path_factory.mktemp("mixed") / "pack"
    pack(tiny_mixtral, out, "int4g32")
    return out


@contextmanager
def mixed(model: Path, *devices: str, replicas: int = 1, eager: bool = False) -> Iterator[Deployment]:
    """eager: whatever is at all late is asked of another holder too."""
    policy = FailoverPolicy(hedge_budget=1.0, hedge_burst=64) if eager else FailoverPolicy()
    with pytest.MonkeyPatch.context() as patch:
        emulated_worker.emulate(patch)
        with deployed(
            model,
            len(devices),
            replicas=replicas,
            devices=devices,
            mixed=True,
            machine=MACHINE,
            cluster=ClusterOptions(policy=policy),
        ) as deployment:
            yield deployment


@pytest.fixture(scope="module")
def of_two(model: Path) -> Iterator[tuple[str, list[Answer]]]:
    """(id, answers) of one GPU worker and one CPU worker."""
    with mixed(model, "cuda", "cpu") as deployment:
        yield deployment.numerics.id, expected_answers(deployment, USERS, TOKENS)


@pytest.fixture(scope="module")
def four(model: Path) -> Iterator[Deployment]:
    """The same mix with two workers of each kind, and two holders of each expert."""
    with mixed(model, "cuda", "cpu", "cpu", "cuda", replicas=2, eager=True) as deployment:
        yield deployment


def carry_out(deployment: Deployment, command: Command) -> None:
    assert deployment.manager is not None
    for _ in deployment.manager.submit(command, 60.0).steps(1.0):
        pass


def pid_of(deployment: Deployment, name: str) -> int:
    return next(status.pid for status in statuses(deployment) if status.name == name)


def check_homes(deployment: Deployment, placement: Placement) -> None:
    """Every expert lies on workers of its kind alone."""
    numerics = deployment.numerics.expert
    assert isinstance(numerics, MixedNumerics)
    gpus = {status.name for status in statuses(deployment) if status.pin.gpu}
    for experts in holders_of(placement):
        for home, names in zip(numerics.homes, experts, strict=True):
            assert {name in gpus for name in names} == {home == CUDA}


def test_the_mix_is_an_id_and_bits_of_its_own(
    model: Path, of_two: tuple[str, list[Answer]], four: Deployment
) -> None:
    numerics, expected = of_two
    assert CPU in numerics
    assert CUDA in numerics
    with deployed(model, 0) as pure:
        assert pure.numerics.id != numerics
        alike = expected_answers(pure, USERS, TOKENS)
        assert [one.receipts for one in alike] != [one.receipts for one in expected], (
            "the kinds differ in bits"
        )
    assert four.numerics.id == numerics
    assert expected_answers(four, USERS, TOKENS) == expected, (
        "equal ids, equal bits, on any number of workers"
    )
    check_homes(four, four.directory.current().placement)


@contextmanager
def watched(deployment: Deployment) -> Iterator[None]:
    """Of every placement that comes into force, each expert lies where it belongs."""
    seen: list[Placement] = []
    stop = threading.Event()

    def watch() -> None:
        last: Membership = deployment.directory.current()
        while not stop.is_set():
            seen.append(last.placement)
            last = deployment.directory.wait_change(last, 0.05)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join(5.0)
    for placement in {id(placement): placement for placement in seen}.values():
        check_homes(deployment, placement)


def test_no_failure_mixes_an_answer(of_two: tuple[str, list[Answer]], four: Deployment) -> None:
    """Kills of either kind under load with hedges of all that is late, workers that join and leave."""
    with watched(four), Traffic(four, of_two[1]) as traffic:
        traffic.wait()
        for name in ("w3", "w1"):
            kill(pid_of(four, name))
            traffic.wait()
            eventually(lambda: len(four.directory.current().endpoints) == 4, 30.0, "it is back")
        carry_out(four, Scale(5))
        carry_out(four, Drain("w0"))
        traffic.wait()
        carry_out(four, Drain("w0", undo=True))
        carry_out(four, Scale(4))
        traffic.wait()


def test_experts_without_a_worker_of_their_kind_wait_for_one(
    of_two: tuple[str, list[Answer]], four: Deployment
) -> None:
    """Nobody of the other kind takes them over: the answer is late, and right."""
    epoch = four.directory.current().placement.epoch
    for status in statuses(four):
        if status.pin.gpu:
            kill(status.pid)
    eventually(lambda: len(four.directory.current().endpoints) == 2, 10.0, "the GPU workers are gone")
    assert answer(four, max_tokens=TOKENS).ids
    assert expected_answers(four, USERS, TOKENS) == of_two[1]
    assert four.directory.current().placement.epoch == epoch, "no change of placement was tried"


def test_what_an_operator_cannot_do(four: Deployment) -> None:
    assert isinstance(four.numerics.expert, MixedNumerics)
    cpu_expert = four.numerics.expert.homes.index(CPU)
    with pytest.raises(
        InvalidInput, match=f"to: expected a worker of {CPU}, which the expert belongs to, got w0, of {CUDA}"
    ):
        carry_out(four, Move((0, cpu_expert), "w0", ""))
    carry_out(four, Drain("w0"))
    with pytest.raises(InvalidInput, match=r"workers: expected at least one of cuda/.*, got none"):
        carry_out(four, Drain("w3"))
    carry_out(four, Drain("w0", undo=True))
    assert copies(holders_of(four.directory.current().placement)).keys() == {"w0", "w1", "w2", "w3"}


def test_a_rescue_is_of_the_same_kind(of_two: tuple[str, list[Answer]], four: Deployment) -> None:
    """Also where workers of the other kind have less to do."""
    numerics = four.numerics.expert
    assert isinstance(numerics, MixedNumerics)
    homes = list(enumerate(numerics.homes))
    alone = next(expert for expert, home in homes if home == CUDA)
    carry_out(four, Move((0, alone), "", "w0"))
    for expert in [expert for expert, home in homes if home == CPU][:3]:
        carry_out(four, Move((0, expert), "", "w1"))
    epoch = four.directory.current().placement.epoch
    with watched(four):
        kill(pid_of(four, "w3"))
        eventually(lambda: four.directory.current().placement.epoch > epoch, 10.0, "it is rescued")
        current = four.directory.current().placement
        assert "w0" in holders_of(current)[0][alone]
        assert expected_answers(four, USERS, TOKENS) == of_two[1]


def test_a_router_over_workers_of_two_kinds(tmp_path: Path) -> None:
    """Rows as they are: wide ones, which tensor cores sum in another order than a CPU (docs/numerics.md)."""
    model = random_mixtral(tmp_path / "mixtral", replace(TINY, hidden=160, layers=2))
    gpu = CudaBackend(EmulatedDevice(emulated_worker.ARCHITECTURE), weight_bytes=1 << 26)
    cpu = CpuBackend(1)
    on_gpu = MoeBench(model, ComputeMode.BF16, tmp_path, gpu)
    on_cpu = MoeBench(model, ComputeMode.BF16, tmp_path, cpu)
    with ExitStack() as stack:
        stack.callback(cpu.close)
        stack.callback(gpu.close)
        targets = [
            stack.enter_context(bench.worker(name, load=False)).target
            for name, bench in (("g", on_gpu), ("c", on_cpu))
        ]

        def routed(targets: list[str], *, mix: bool) -> RouterParts:
            return assemble_router(RouterOptions(model, targets, threads=1, mixed_numerics=mix))

        with pytest.raises(NumericsMismatch, match="only with --mixed-numerics") as caught:
            routed(targets, mix=False)
        for kind in ("cpu", "cuda"):
            assert f" {kind}/bf16/w=bf16/wire=bf16/" in str(caught.value)
        with pytest.raises(
            ConfigError,
            match="--mixed-numerics: expected workers of several expert_numerics_ids, got cuda/",
        ):
            routed(targets[:1], mix=True)

        with routed(targets, mix=True) as parts:
            found = parts.router
            placement = found.directory.current().placement
            owners = [placement.owner(layer).tolist() for layer in range(found.layers)]

            def run(layer: int, x: Array, batch: UnitBatch) -> tuple[F32, U32]:
                """The oracle: each expert where it belongs, in this process."""
                bench = (on_gpu, on_cpu)[owners[layer][int(batch.group_expert[0])]]
                return run_units(bench.backend, bench.store, layer, x, batch)

            directory = Directory(Membership(replace(placement, loads=None), {}))
            oracle = MoeRouter(cpu, on_cpu.mode, on_cpu.gates, on_cpu.top_k, directory, LocalExecutor(run))
            x = on_cpu.rows(np.random.default_rng(), 20)
            for layer in range(found.layers):
                assert sorted(owners[layer]) == [0] * 4 + [1] * 4
                expected, pure = oracle.forward(layer, x), on_cpu.local().forward(layer, x)
                rows = found.forward(layer, x)
                assert not rows.failed
                assert rows.rows.tobytes() == expected.rows.tobytes() != pure.rows.tobytes()
                alone = found.forward(layer, np.ascontiguousarray(x[3:4]))
                assert alone.rows.tobytes() == expected.rows[3:4].tobytes()


def test_the_option_is_needed(model: Path) -> None:
    with (
        pytest.raises(ColibriError, match=r"--device: expected workers of one kind, .* or --mixed-numerics"),
        deployed(model, 2, devices=("cuda", "cpu"), machine=MACHINE),
    ):
        pass
