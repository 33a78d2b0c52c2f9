"""Where the workers of a deployment compute: whether that can be had, and which experts' numerics follow from it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from colibri.cli.pinning_options import AUTO, CPU, CUDA, PinningOptions
from colibri.cluster.pinning_plan import WorkerPlace
from colibri.cluster.topology import Gpu
from colibri.errors import ConfigError
from colibri.kernels.cuda.device import DeviceError
from colibri.kernels.cuda.opening import family_at, require_cuda


def settle_devices(
    options: PinningOptions,
    workers: int,
    backend: str,
    gpus: Sequence[Gpu],
    *,
    on_ray: bool,
    log: Callable[[str], None],
    require: Callable[[], None] = require_cuda,
) -> PinningOptions:
    """The same options with `auto` decided. gpus: of this machine. require: raises DeviceError where no GPU can be used
    from here.

    Raises ConfigError, naming the option, for devices that the workers cannot have."""
    devices = options.devices
    asked = ",".join(devices)
    if devices == (CPU,):
        return options
    if workers == 0:
        raise ConfigError("--device", "cpu, where this process starts no workers", asked)
    if len(devices) not in (1, workers):
        raise ConfigError("--device", f"one device, or one for each of {workers} workers", asked)
    if on_ray and set(devices) not in ({CPU}, {CUDA}):
        raise ConfigError(
            "--device", "cpu or cuda with --launcher ray, which gives workers their GPUs", asked
        )
    if devices == (AUTO,):
        devices = (_automatic(workers, backend, gpus, options.share, log, require),)
    elif devices[0] != CPU:
        if backend != "cpu":
            raise ConfigError("--backend", f"cpu, or none, with --device {asked}", backend)
        if not on_ray:  # other hosts' workers find out there
            try:
                require()
            except DeviceError as error:
                raise ConfigError("--device", f"what {asked} needs", error) from error
    return replace(options, devices=devices)


def experts_kind(
    options: PinningOptions,
    places: Sequence[WorkerPlace],
    backend: str,
    experts_on: str | None,
    family: Callable[[str], str] = family_at,
) -> tuple[str, str]:
    """(backend, instruction family) of the workers' numerics id. options: settled. places: of local workers; none where
    others place them. experts_on: 'cuda/FAMILY' as the command line has it.

    Raises ConfigError where it cannot be told, and where GPUs of several families would stand in for each other."""
    if options.devices[0] == CPU:
        if experts_on is not None:
            raise ConfigError("--experts-on", "--device cuda beside it", experts_on)
        return backend, "any"
    asked = None if experts_on is None else experts_on.partition("/")[2]
    if not places:
        if asked is None:
            raise ConfigError("--experts-on", "cuda/FAMILY (cuda/mma-sm90) of the other hosts' GPUs", "none")
        return CUDA, asked
    found = {}
    for place in places:
        try:
            found[place.gpu] = family(place.gpu)
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
    workers: int,
    backend: str,
    gpus: Sequence[Gpu],
    share: bool,
    log: Callable[[str], None],
    require: Callable[[], None],
) -> str:
    try:
        require()
        if backend != "cpu":
            raise DeviceError(f"--backend {backend}")
        if not gpus or (len(gpus) < workers and not share):
            raise DeviceError(f"GPUs: expected one for each of {workers} workers, got {len(gpus)}")
    except DeviceError as error:
        log(f"device auto: the CPU ({error})")
        return CPU
    log("device auto: cuda")
    return CUDA
