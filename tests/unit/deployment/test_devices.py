"""Where workers compute: options that fit together, places beside GPUs on made-up machines, numerics that follow. No
GPU is needed: what is asked of a driver is handed in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.machine.topology import Gpu
from colibri.cluster.workers.launch import LaunchOptions, worker_command
from colibri.deployment.devices import (
    Asked,
    Kind,
    Machine,
    Settled,
    WorkerKinds,
    check_int4,
    settle_devices,
    worker_kinds,
)
from colibri.deployment.pinning import PinningOptions
from colibri.deployment.places import Places
from colibri.errors import ConfigError
from colibri.expert_service.cpu_locks import CpuLocks
from colibri.expert_service.gpu_options import GpuOptions
from colibri.kernels.cuda.device import DeviceError
from tests.support.machine_trees import MachineTree, two_sockets

GPUS = (Gpu("0000:17:00.0", 0), Gpu("0000:ca:00.0", 1))


def usable() -> None:
    """A driver is there."""


def no_driver() -> None:
    raise DeviceError("driver: expected one, got none")


def sm90(address: str) -> str:
    return "mma-sm90"


def settle(
    options: PinningOptions,
    workers: int | None = 2,
    *,
    backend: str = "cpu",
    gpus: tuple[Gpu, ...] = GPUS,
    elsewhere: Callable[[], int] | None = None,
    require: Callable[[], None] = usable,
    may_use: Callable[[str], bool] = lambda address: True,
) -> tuple[Settled, list[str]]:
    said: list[str] = []
    machine = Machine(gpus, require, may_use, elsewhere)
    return settle_devices(options, workers, 2, backend, machine, said.append), said


def places_of(tree: MachineTree, workers: int, *devices: str, share: bool = False) -> list[WorkerPinning]:
    options = PinningOptions(devices=devices, share=share)
    places = Places(tree.discover(), options, None, CpuLocks(None), lambda line: None, lambda cpu, node: None)
    return list(places.first(workers).workers)


def test_each_worker_sits_beside_its_own_gpu(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    cards = [gpu.address for gpu in tree.discover().gpus]
    each = places_of(tree, 4, "cuda")
    assert [place.gpu for place in each] == cards
    assert [place.numa_node for place in each] == [0, 0, 1, 1]
    named = places_of(tree, 3, "cuda:3", "cuda", "cuda:0")
    assert [place.gpu for place in named] == [cards[3], cards[1], cards[0]]
    assert [place.numa_node for place in named] == [1, 0, 0]
    assert [place.gpu for place in places_of(tree, 2, "cpu")] == ["", ""]
    assert [place.gpu for place in places_of(tree, 2, "cuda:2", share=True)] == [cards[2]] * 2


@pytest.mark.parametrize(
    ("workers", "devices", "text"),
    [
        (5, ("cuda",), "--workers: expected at most 4, one for each GPU, got 5"),
        (1, ("cuda:4",), r"--device: expected cuda:0 .. cuda:3 \(4 here\), got cuda:4"),
        (
            2,
            ("cuda:1",),
            "--device: expected a GPU of its own for each worker, or --share-cpus, got cuda:1 twice",
        ),
    ],
)
def test_gpus_that_are_not_there(tmp_path: Path, workers: int, devices: tuple[str, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        places_of(two_sockets(tmp_path), workers, *devices)


def test_a_machine_without_a_gpu(tmp_path: Path) -> None:
    tree = MachineTree(tmp_path).nodes("0-3")
    with pytest.raises(ConfigError, match="--device: expected an NVIDIA GPU on the PCI bus, got none"):
        places_of(tree, 1, "cuda")


def test_a_worker_is_told_the_address_of_its_gpu(tmp_path: Path) -> None:
    options = LaunchOptions(tmp_path, "bf16", gpu=GpuOptions(dma_buffer_bytes=1 << 20, int4_on="cpu"))
    place = WorkerPinning(1, (4,), 1, False, "0000:ca:00.0")
    found = set(worker_command(options, "w0", 1, tmp_path / "s", place))
    assert {"--device=cuda:0000:ca:00.0", "--dma-buffer-size=1048576", "--numa-node=1"} <= found
    assert "--int4-on=cpu" in found
    assert not any("block-size" in word for word in found)
    plain = worker_command(options, "w0", 1, tmp_path / "s", WorkerPinning(1, (4,), 1, False))
    assert not any(word.startswith(("--device", "--dma", "--int4")) for word in plain)


def test_auto_is_decided_and_said() -> None:
    auto = PinningOptions(devices=("auto",))
    assert settle(auto)[0].pinning.devices == ("cuda",)
    found, said = settle(auto, require=no_driver)
    assert found.pinning.devices == ("cpu",)
    assert said == ["device auto: the CPU (driver: expected one, got none)"]
    found, said = settle(auto, 3)
    assert found.pinning.devices == ("cpu",)
    assert "one for each of 3 workers, got 2" in said[0]


def test_one_worker_for_each_gpu_unless_told() -> None:
    on_gpu, auto = PinningOptions(devices=("cuda",)), PinningOptions(devices=("auto",))
    four = tuple(Gpu(f"0000:{number}7:00.0", 0) for number in range(1, 5))
    assert settle(on_gpu, None, gpus=four) == (
        Settled(on_gpu, 4, four),
        ["workers: 4, one for each GPU"],
    )
    found, said = settle(auto, None, gpus=four)
    assert (found.pinning.devices, found.workers) == (("cuda",), 4)
    assert said == ["device auto: cuda; workers: 4, one for each GPU"]
    assert settle(on_gpu, 3, gpus=four)[0].workers == 3
    assert settle(PinningOptions(devices=("cuda:1",)), None)[0].workers == 1
    assert settle(PinningOptions(devices=("cuda:1", "cuda", "cuda:0")), None, gpus=four)[0].workers == 3
    found, said = settle(auto, None, gpus=())
    assert (found.pinning.devices, found.workers) == (("cpu",), 2)
    assert "GPUs: expected one for each of 1 workers, got 0" in said[0]
    assert settle(auto, None, require=no_driver)[0].workers == 2
    assert settle(PinningOptions(), None)[0].workers == 2
    assert settle(on_gpu, None, elsewhere=lambda: 7)[0].workers == 7
    assert settle(PinningOptions(), None, elsewhere=lambda: 7)[0].workers == 2


def test_only_cards_that_this_process_may_use_count() -> None:
    """As in a container, which shows the whole bus."""
    on_gpu = PinningOptions(devices=("cuda",))
    found, _ = settle(on_gpu, None, may_use=lambda address: address == GPUS[1].address)
    assert (found.workers, found.gpus) == (1, GPUS[1:])
    with pytest.raises(
        ConfigError,
        match="--device: expected a GPU that this process may use, got none of the 2 on the PCI bus",
    ):
        settle(on_gpu, None, may_use=lambda address: False)


def test_what_cannot_be_had_is_said_at_once() -> None:
    on_gpu = PinningOptions(devices=("cuda",))
    with pytest.raises(ConfigError, match="--device: expected what cuda needs, got driver: expected one"):
        settle(on_gpu, require=no_driver)
    with pytest.raises(ConfigError, match="--device: expected cpu, where this process starts no workers"):
        settle(on_gpu, 0)
    with pytest.raises(
        ConfigError, match="--backend: expected cpu, or none, with --device cuda, got reference"
    ):
        settle(on_gpu, backend="reference")
    with pytest.raises(ConfigError, match="one device, or one for each of 3 workers, got cuda:0,cuda:1"):
        settle(PinningOptions(devices=("cuda:0", "cuda:1")), 3)
    for devices in (("cuda:0",), ("auto",)):
        with pytest.raises(ConfigError, match="--device: expected cpu or cuda with --launcher ray"):
            settle(PinningOptions(devices=devices), elsewhere=lambda: 1)
    found, _ = settle(on_gpu, elsewhere=lambda: 1, require=no_driver)
    assert found.pinning == on_gpu, "other hosts' workers find out"


def kinds_of(
    options: PinningOptions,
    places: Sequence[WorkerPinning],
    asked: Asked,
    family: Callable[[str], str] = sm90,
    workers: int = 2,
) -> WorkerKinds:
    return worker_kinds(options, [f"w{index}" for index in range(workers)], places, asked, family)


PLACES = [WorkerPinning(gpu.node, (gpu.node,), 1, False, gpu.address) for gpu in GPUS]
BESIDE = WorkerPinning(0, (5,), 1, False)
ON_GPU, MIXED = PinningOptions(devices=("cuda",)), PinningOptions(devices=("cuda", "cpu"))
#: What a GPU of these tests computes.
SM90 = ("cuda", "mma-sm90")


def alike(kind: Kind) -> WorkerKinds:
    return WorkerKinds(kind, {"w0": kind, "w1": kind})


def test_the_numerics_that_workers_must_have() -> None:
    reference = Asked("reference")
    assert kinds_of(PinningOptions(), [BESIDE] * 2, reference) == alike(("reference", "any"))
    assert kinds_of(PinningOptions(), [], Asked("cpu"), workers=0) == WorkerKinds(("cpu", "any"), {})
    assert kinds_of(ON_GPU, PLACES, Asked("cpu")) == alike(SM90)
    assert kinds_of(ON_GPU, [], Asked("cpu", experts_on="cuda/simt")) == alike(("cuda", "simt"))
    for named in (None, "cuda/mma-sm90", "cuda/mma-sm90+int4-cpu"):
        found = kinds_of(ON_GPU, PLACES, Asked("cpu", experts_on=named, int4_on="cpu"))
        assert found == alike(("cuda", "mma-sm90+int4-cpu"))
    simt = kinds_of(ON_GPU, [], Asked("cpu", experts_on="cuda/simt", int4_on="cpu"))
    assert simt == alike(("cuda", "simt+int4-cpu"))
    families = {GPUS[0].address: "mma-sm80", GPUS[1].address: "mma-sm90"}
    for asked, places, text in (
        (Asked("cpu"), [], r"--experts-on: expected cuda/FAMILY .* got none"),
        (Asked("cpu", experts_on="cuda/mma-sm80"), PLACES, "expected cuda/mma-sm90, .* got cuda/mma-sm80"),
        (
            Asked("cpu", experts_on="cuda/simt+int4-cpu", int4_on="gpu"),
            [],
            r"--experts-on: expected cuda/simt without --int4-on cpu beside it, got cuda/simt\+int4-cpu",
        ),
    ):
        with pytest.raises(ConfigError, match=text):
            kinds_of(ON_GPU, places, asked)
    with pytest.raises(ConfigError, match="--experts-on: expected --device cuda beside it"):
        kinds_of(PinningOptions(), [BESIDE] * 2, Asked("cpu", experts_on="cuda/simt"))
    with pytest.raises(
        ConfigError, match=r"GPUs of one family, .* got mma-sm80 at 0000:17:00.0, mma-sm90 at 0000:ca:00.0"
    ):
        kinds_of(ON_GPU, PLACES, Asked("cpu"), families.__getitem__)


def test_several_kinds_only_where_they_are_asked_for() -> None:
    places = [PLACES[0], BESIDE]
    found = kinds_of(MIXED, places, Asked("cpu", mixed=True))
    assert found == WorkerKinds(("cpu", "any"), {"w0": SM90, "w1": ("cpu", "any")}), "who joins has no GPU"
    other = Asked("cpu", backends={"w1": "reference"}, mixed=True)
    found = kinds_of(PinningOptions(), [BESIDE] * 2, other)
    assert found == WorkerKinds(("cpu", "any"), {"w0": ("cpu", "any"), "w1": ("reference", "any")})
    for options, where, asked, text in (
        (
            MIXED,
            places,
            Asked("cpu"),
            "--device: expected workers of one kind, as they stand in for each other, or --mixed-numerics, got "
            "w1: cpu/any; w0: cuda/mma-sm90",
        ),
        (
            PinningOptions(),
            [BESIDE] * 2,
            Asked("cpu", {"w1": "reference"}),
            "--worker-backend: expected workers of one kind, .* got w0: cpu/any; w1: reference/any",
        ),
        (
            ON_GPU,
            PLACES,
            Asked("cpu", mixed=True),
            "--mixed-numerics: expected workers of several kinds, as by --device cuda,cpu, got w0, w1: cuda/mma-sm90",
        ),
        (MIXED, places, Asked("cpu", {"w0": "reference"}, mixed=True), "a worker without a GPU, got w0"),
        (MIXED, places, Asked("cpu", {"w7": "reference"}, mixed=True), r"of the start \(w0, w1\), got w7"),
    ):
        with pytest.raises(ConfigError, match=text):
            kinds_of(options, where, asked)


def test_places_of_gpus_and_cpus(tmp_path: Path) -> None:
    tree = two_sockets(tmp_path)
    cards = [gpu.address for gpu in tree.discover().gpus]
    each = places_of(tree, 3, "cuda:3", "cpu", "cuda")
    assert [place.gpu for place in each] == [cards[3], "", cards[0]]
    assert len({cpu for place in each for cpu in place.cpus}) == sum(len(place.cpus) for place in each)
    options = PinningOptions(devices=("cuda", "cpu"), cpu_threads=(2,))
    places = Places(tree.discover(), options, None, CpuLocks(None), lambda line: None, lambda cpu, node: None)
    first = places.first(2).workers
    assert [place.gpu for place in (*first, *places.joining(first, ["w2"]))] == [cards[0], "", ""]
    (back,) = places.joining(first[1:], ["w0"])
    assert back.gpu == cards[0], "one that comes back is what it was"


def test_int4_on_where_it_would_do_nothing() -> None:
    check_int4(None, ("cpu",), "bf16")
    check_int4("cpu", ("cuda",), "int4g64")
    with pytest.raises(
        ConfigError, match="--int4-on: expected a GPU by --device, got auto, which is the CPU here"
    ):
        check_int4("cpu", ("cpu",), "int4g64")
    with pytest.raises(ConfigError, match="--int4-on: expected a pack of int4 experts, got bf16 experts"):
        check_int4("cpu", ("cuda",), "bf16")
