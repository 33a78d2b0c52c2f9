"""Where the workers of a deployment compute, and how many there are: whether that can be had, and which experts'
numerics follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from colibri.cli.pinning_options import AUTO, CPU, CUDA, PinningOptions
from colibri.cluster.pinning_plan import WorkerPlace
from colibri.cluster.topology import Gpu
from colibri.errors import ConfigError
from colibri.kernels.cuda.backend import INT4_ON_CPU
from colibri.kernels.cuda.device import DeviceError
from colibri.kernels.cuda.opening import family_at, may_use, require_cuda


@dataclass(frozen=True, slots=True)
class Machine:
    """What is asked about devices. gpus: on this machine's bus; require: raises DeviceError where no GPU can be used
    from here; may_use: whether this process may use the card at an address. elsewhere: where others place the workers,
    how many could have a GPU there, counted when it is asked for; None: they are this machine's."""

    gpus: Sequence[Gpu]
    require: Callable[[], None] = require_cuda
    may_use: Callable[[str], bool] = may_use
    elsewhere: Callable[[], int] | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """pinning: with `auto` decided; gpus: that workers of this machine may have, in the order of the bus."""

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
    """workers: None: one for each GPU where they have GPUs, one for each device where several are named, else `usual`.

    Raises ConfigError, naming the option, for devices that the workers cannot have."""
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
    if devices[0] == CPU:
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
    """devices: settled; experts: their format. Raises ConfigError where the option would do nothing."""
    if int4_on is None:
        return
    if devices[0] == CPU:
        raise ConfigError("--int4-on", "a GPU by --device", "auto, which is the CPU here")
    if not experts.startswith("int4"):
        raise ConfigError("--int4-on", "a pack of int4 experts", f"{experts} experts")


def experts_kind(
    options: PinningOptions,
    places: Sequence[WorkerPlace],
    backend: str,
    experts_on: str | None,
    int4_on: str | None = None,
    family: Callable[[str], str] = family_at,
) -> tuple[str, str]:
    """(backend, instruction family) of the workers' numerics id. options: settled. places: of local workers; none where
    others place them. experts_on: 'cuda/FAMILY', int4_on: as the command line has them.

    Raises ConfigError where it cannot be told, and where GPUs of several families would stand in for each other."""
    if options.devices[0] == CPU:
        if experts_on is not None:
            raise ConfigError("--experts-on", "--device cuda beside it", experts_on)
        return backend, "any"
    asked = None if experts_on is None else experts_on.partition("/")[2]
    suffix = INT4_ON_CPU if int4_on == "cpu" else ""
    if asked is not None:
        plain = asked.removesuffix(INT4_ON_CPU)
        if asked != plain and not suffix:
            raise ConfigError("--experts-on", f"cuda/{plain} without --int4-on cpu beside it", experts_on)
        asked = plain + suffix
    if not places:
        if asked is None:
            raise ConfigError("--experts-on", "cuda/FAMILY (cuda/mma-sm90) of the other hosts' GPUs", "none")
        return CUDA, asked
    found = {}
    for place in places:
        try:
            found[place.gpu] = family(place.gpu) + suffix
        except DeviceError as error:
            raise ConfigError("--device", f"a GPU at {place.gpu} that can be used", error) from error
    if len(set(found.values())) > 1:
        each = ", ".join(f"{kind} at {address}" for address, kind in sorted(found.items()))
        raise ConfigError("--device", "GPUs of one family, as they stand in for each other", each)
    (kind,) = set(found.values())
    if asked not in (None, kind):
        raise ConfigError("--experts-on", f"cuda/{kind}, the family of this machine's GPUs", experts_on)
    return CUDA, kind


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
    """A container shows the whole bus, and lets its processes use some of the cards."""
    return tuple(gpu for gpu in machine.gpus if machine.may_use(gpu.address))


def _check_backend(backend: str, asked: str) -> None:
    if backend != "cpu":
        raise ConfigError("--backend", f"cpu, or none, with --device {asked}", backend)
