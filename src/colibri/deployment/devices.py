"""Decide where a deployment's workers compute, how many there are, and which numerics their experts have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from colibri.cluster.machine.pinning_plan import WorkerPinning
from colibri.cluster.machine.topology import Gpu
from colibri.deployment.pinning import AUTO, CPU, CUDA, PinningOptions
from colibri.errors import ConfigError
from colibri.kernels.cuda.backend import INT4_ON_CPU
from colibri.kernels.cuda.device import DeviceError
from colibri.kernels.cuda.opening import family_at, may_use, require_cuda
from colibri.numerics_homes import OPTION


@dataclass(frozen=True, slots=True)
class Machine:
    """The devices to choose from.

    gpus: on this machine's bus.
    require: raises DeviceError if no GPU can be used from here.
    may_use: whether this process may use the card at an address.
    family: of that card, as its numerics id names it.
    elsewhere: if others place the workers, counts how many could have a GPU there; None: they are this machine's.
    """

    gpus: Sequence[Gpu]
    require: Callable[[], None] = require_cuda
    may_use: Callable[[str], bool] = may_use
    elsewhere: Callable[[], int] | None = None
    family: Callable[[str], str] = family_at


@dataclass(frozen=True, slots=True)
class Settled:
    """What was decided. pinning: with `auto` resolved; gpus: that workers of this machine may have, in the order of
    the bus.
    """

    pinning: PinningOptions
    workers: int
    gpus: tuple[Gpu, ...]


def settle_devices(
    options: PinningOptions,
    workers: int | None,
    usual: int,
    backend: str,
    machine: Machine,
    log: Callable[[str], None],
) -> Settled:
    """Resolves the devices. Raises ConfigError, naming the option, for devices that the workers cannot have.

    workers: None: one per GPU if they have GPUs, one per device if several are named, else `usual`.
    """
    devices, bus = options.devices, tuple(machine.gpus)
    asked = ",".join(devices)
    if devices == (CPU,):
        return Settled(options, usual if workers is None else workers, bus)
    if workers == 0:
        raise ConfigError("--device", "cpu, where this process starts no workers", asked)
    if workers is None and len(devices) > 1:
        workers = len(devices)
    if len(devices) not in (1, workers):
        raise ConfigError("--device", f"one device, or one for each of {workers} workers", asked)
    if machine.elsewhere is not None:
        if set(devices) not in ({CPU}, {CUDA}):
            raise ConfigError(
                "--device", "cpu or cuda with --launcher ray, which gives workers their GPUs", asked
            )
        _check_backend(backend, asked)
        return Settled(options, machine.elsewhere() if workers is None else workers, bus)
    if devices == (AUTO,):
        return _automatic(options, workers, usual, backend, machine, log)
    if all(device == CPU for device in devices):
        return Settled(options, len(devices), bus)
    _check_backend(backend, asked)
    try:
        machine.require()
    except DeviceError as error:
        raise ConfigError("--device", f"what {asked} needs", error) from error
    gpus = _usable(machine)
    if bus and not gpus:
        raise ConfigError(
            "--device", "a GPU that this process may use", f"none of the {len(bus)} on the PCI bus"
        )
    if workers is None:
        # A card that is named is one for one; where there is none at all, whoever plans places says so.
        workers = max(1, len(gpus)) if devices == (CUDA,) else 1
        if gpus:
            log(f"workers: {workers}, one for each GPU")
    return Settled(options, workers, gpus)


def check_int4(int4_on: str | None, devices: Sequence[str], experts: str) -> None:
    """Raises ConfigError if --int4-on would do nothing. devices: resolved; experts: their format."""
    if int4_on is None:
        return
    if all(device == CPU for device in devices):
        raise ConfigError("--int4-on", "a GPU by --device", "auto, which is the CPU here")
    if not experts.startswith("int4"):
        raise ConfigError("--int4-on", "a pack of int4 experts", f"{experts} experts")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line says of the workers' numerics.

    backend: of all workers.
    backends: by worker, of those with another one.
    experts_on: 'cuda/FAMILY', as on the command line.
    int4_on: as on the command line.
    mixed: they may differ.
    """

    backend: str
    backends: Mapping[str, str] = field(default_factory=dict)
    experts_on: str | None = None
    int4_on: str | None = None
    mixed: bool = False


#: (backend, instruction family) of an ExpertNumerics.
Kind = tuple[str, str]


@dataclass(frozen=True, slots=True)
class WorkerKinds:
    """usual: of this process if there are no workers, and of workers that join. workers: by name."""

    usual: Kind
    workers: Mapping[str, Kind]


def worker_kinds(
    options: PinningOptions,
    names: Sequence[str],
    places: Sequence[WorkerPinning],
    asked: Asked,
    family: Callable[[str], str] = family_at,
) -> WorkerKinds:
    """Returns each worker's backend and family.

    options: resolved.
    names: of the workers.
    places: their pinnings; none if others place them.

    Raises ConfigError if this cannot be told, for GPUs of several families, and for workers that differ although
    nobody asked for that, or do not differ although somebody did.
    """
    on_gpu = all(device != CPU for device in options.devices)
    if asked.experts_on is not None and all(device == CPU for device in options.devices):
        raise ConfigError("--experts-on", "--device cuda beside it", asked.experts_on)
    for name in asked.backends:
        if name not in names:
            raise ConfigError(
                "--worker-backend", f"a worker of the start ({', '.join(names) or 'none'})", name
            )
    gpus = [place.gpu for place in places if place.gpu]
    cuda: Kind | None = (CUDA, _family(gpus, asked, family)) if gpus or (on_gpu and not places) else None
    cpu: Kind = (asked.backend, "any")
    found = {}
    for index, name in enumerate(names):
        gpu = bool(places[index].gpu) if places else on_gpu
        if name in asked.backends:
            if gpu:
                raise ConfigError("--worker-backend", "a worker without a GPU", name)
            found[name] = (asked.backends[name], "any")
        else:
            found[name] = cuda if gpu and cuda is not None else cpu
    kinds = sorted(set(found.values()))
    told = "; ".join(
        f"{', '.join(name for name in names if found[name] == kind)}: {'/'.join(kind)}" for kind in kinds
    )
    if asked.mixed and len(kinds) < 2:
        raise ConfigError(OPTION, "workers of several kinds, as by --device cuda,cpu", told or "no workers")
    if not asked.mixed and len(kinds) > 1:
        option = "--worker-backend" if asked.backends else "--device"
        raise ConfigError(option, f"workers of one kind, as they stand in for each other, or {OPTION}", told)
    return WorkerKinds(cuda if on_gpu and cuda is not None else cpu, found)


def _family(gpus: Sequence[str], asked: Asked, family: Callable[[str], str]) -> str:
    """Returns the family of all the GPUs, with what int4_on adds to it. gpus: addresses; none if they are other
    hosts'.
    """
    suffix = INT4_ON_CPU if asked.int4_on == "cpu" else ""
    named = None if asked.experts_on is None else asked.experts_on.partition("/")[2]
    if named is not None:
        plain = named.removesuffix(INT4_ON_CPU)
        if named != plain and not suffix:
            raise ConfigError(
                "--experts-on", f"cuda/{plain} without --int4-on cpu beside it", asked.experts_on
            )
        named = plain + suffix
    if not gpus:
        if named is None:
            raise ConfigError("--experts-on", "cuda/FAMILY (cuda/mma-sm90) of the other hosts' GPUs", "none")
        return named
    found = {}
    for address in gpus:
        try:
            found[address] = family(address) + suffix
        except DeviceError as error:
            raise ConfigError("--device", f"a GPU at {address} that can be used", error) from error
    if len(set(found.values())) > 1:
        each = ", ".join(f"{kind} at {address}" for address, kind in sorted(found.items()))
        raise ConfigError("--device", "GPUs of one family, as they stand in for each other", each)
    (kind,) = set(found.values())
    if named not in (None, kind):
        raise ConfigError("--experts-on", f"cuda/{kind}, the family of this machine's GPUs", asked.experts_on)
    return kind


def _automatic(
    options: PinningOptions,
    workers: int | None,
    usual: int,
    backend: str,
    machine: Machine,
    log: Callable[[str], None],
) -> Settled:
    gpus: tuple[Gpu, ...] = ()
    try:
        machine.require()
        if backend != "cpu":
            raise DeviceError(f"--backend {backend}")
        gpus = _usable(machine)
        wanted = 1 if workers is None else workers
        if not gpus or (len(gpus) < wanted and not options.share):
            raise DeviceError(f"GPUs: expected one for each of {wanted} workers, got {len(gpus)}")
    except DeviceError as error:
        log(f"device auto: the CPU ({error})")
        return Settled(replace(options, devices=(CPU,)), usual if workers is None else workers, gpus)
    found = len(gpus) if workers is None else workers
    log("device auto: cuda" + (f"; workers: {found}, one for each GPU" if workers is None else ""))
    return Settled(replace(options, devices=(CUDA,)), found, gpus)


def _usable(machine: Machine) -> tuple[Gpu, ...]:
    """Returns the cards that this process may use. A container shows the whole bus but allows only some cards."""
    return tuple(gpu for gpu in machine.gpus if machine.may_use(gpu.address))


def _check_backend(backend: str, asked: str) -> None:
    if backend != "cpu":
        raise ConfigError("--backend", f"cpu, or none, with --device {asked}", backend)
